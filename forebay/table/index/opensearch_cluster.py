# SPDX-License-Identifier: Apache-2.0
"""Requests to OpenSearch: repeated while it is busy, checked item by item, and with errors that say what to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from forebay.clock import SystemClock
from forebay.errors import ConfigurationError, DataError, ForebayError, RetriableError
from forebay.retry import RetryCount, RetryPolicy
from forebay.table.index.opensearch_documents import PROGRESS

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

T = TypeVar("T")

_REFUSED: Final = 400
_GONE: Final = 404
_NEWER: Final = 409
_KEEP_ALIVE: Final = "10m"
_AGAIN: Final = "call it again; nothing is lost"

_WINDOW: Final = 10_000
"""Hits that OpenSearch returns at once."""


class MissingError(Exception):
    """There is no such index or document in OpenSearch, or a point in time has ended."""


@dataclass(frozen=True)
class Indexed:
    """An index of OpenSearch, and how far it is.

    Args:
        name: Its name.
        meta: What it says of itself: owner and definition.
        data: The number of the last fact of the log that all its documents contain.
        attempt: The attempt that put this fact.
        edits: The offset of the last edit that they contain.
    """

    name: str
    meta: Mapping[str, Any]
    data: int
    attempt: str
    edits: int


class Cluster:
    """A cluster of OpenSearch. For any thread. Requests are repeated while it does not answer or is busy.

    Args:
        hosts: Its URL, or several; or a client of opensearch-py, with what it needs of TLS and passwords.
        policy: How long requests are repeated.

    Raises:
        ConfigurationError: opensearch-py is not installed.
    """

    def __init__(self, hosts: str | Sequence[str] | OpenSearch, policy: RetryPolicy | None = None) -> None:
        try:
            import opensearchpy
        except ModuleNotFoundError as error:
            if error.name != "opensearchpy":
                raise
            raise ConfigurationError(
                "OpenSearch needs opensearch-py, which is not installed", advice='pip install "forebay[opensearch]"'
            ) from error
        self._errors = opensearchpy.exceptions
        self._policy = policy or RetryPolicy()
        if isinstance(hosts, opensearchpy.OpenSearch):
            self.client = hosts
        else:
            some = [hosts] if isinstance(hosts, str) else list(hosts)
            self.client = opensearchpy.OpenSearch(hosts=some, timeout=60, max_retries=0)

    def call(self, request: Callable[[OpenSearch], T]) -> T:
        """Return what a request returns, repeated while the cluster does not answer or is busy.

        Raises:
            RetriableError: It was so for the whole time of the policy.
            ConfigurationError: The cluster refuses the request.
            MissingError: There is no such index, document or point in time.
        """
        attempts = self._attempts()
        while True:
            try:
                return request(self.client)
            except self._errors.NotFoundError as error:
                raise MissingError(str(error)) from error
            except self._errors.TransportError as error:
                failure = self._failure(error)
                if not isinstance(failure, RetriableError):
                    raise failure from error
                self._pause(attempts, failure)

    def indexed(self, alias: str, owner: Mapping[str, object]) -> Indexed | None:
        """Return the index that an alias names; None if there is none, or it was not finished.

        Args:
            alias: The alias.
            owner: What the index must say of itself.

        Raises:
            ConfigurationError: It was made by someone else.
        """
        try:
            indexes = self.own_indexes(alias, owner)
            foreign = [name for name, meta in indexes.items() if meta is None]
            if foreign or len(indexes) > 1:
                raise ConfigurationError(
                    f"{alias!r} of OpenSearch is {', '.join(foreign or indexes)}, which is not of "
                    + ", ".join(f"{name} {value!r}" for name, value in owner.items()),
                    option="name",
                    advice="give another name; or remove the index if nobody needs it",
                )
            name, meta = indexes.popitem()
            progress = self.call(lambda client: client.get(index=name, id=PROGRESS))["_source"][PROGRESS]
            return Indexed(name, meta or {}, progress["data"], progress["attempt"], progress["edits"])
        except MissingError:
            return None

    def own_indexes(self, names: str, owner: Mapping[str, object]) -> dict[str, Mapping[str, Any] | None]:
        """Return what indexes say of themselves, by name; None for those of someone else."""
        answer = self.call(lambda client: client.indices.get(index=names))
        metas = {name: each["mappings"].get("_meta", {}).get("forebay", {}) for name, each in answer.items()}
        return {name: meta if owner.items() <= meta.items() else None for name, meta in metas.items()}

    def create(self, name: str, body: Mapping[str, Any]) -> None:
        """Create an index. Its name is new, so one that exists is of a request whose answer was lost."""
        answer = self.call(lambda client: client.indices.create(index=name, body=body, params={"ignore": _REFUSED}))
        if "error" in answer and answer["error"]["type"] != "resource_already_exists_exception":
            raise ConfigurationError(f"OpenSearch makes no index {name!r}: {answer['error']}", option="settings")

    def remove(self, name: str) -> None:
        """Remove an index whose build failed. If that fails too, the next build removes it."""
        with suppress(self._errors.OpenSearchException):
            self.client.indices.delete(index=name)

    def open_point(self, index: str) -> str:
        """Open a point in time of an index, which lives as long as it is asked at least every 10 minutes."""
        opened = self.call(lambda client: client.create_pit(index=index, params={"keep_alive": _KEEP_ALIVE}))
        return str(opened["pit_id"])

    def close_point(self, point: str) -> None:
        """Close a point in time. One that is not closed ends by itself."""
        with suppress(self._errors.OpenSearchException):
            self.client.delete_pit(body={"pit_id": [point]})

    def search(self, point: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a search at a point in time.

        Raises:
            MissingError: The point in time has ended.
        """
        whole = {"pit": {"id": point, "keep_alive": _KEEP_ALIVE}, **body}
        try:
            return self.call(lambda client: client.search(body=whole, params={"allow_partial_search_results": "false"}))
        except ConfigurationError as error:
            error.option, error.advice = "where", "ask in smaller queries; a list, as in where(name=[…]), counts as one"
            raise

    def hits(
        self, point: str, body: Mapping[str, Any], limit: int, after: Sequence[Any] | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """Yield at most `limit` hits of a search at a point in time, after the one with the sort values `after`."""
        while limit > 0:
            size = min(limit, _WINDOW)
            following = {} if after is None else {"search_after": list(after)}
            hits = self.search(point, {**body, "size": size, "track_total_hits": False, **following})["hits"]["hits"]
            yield from hits
            if len(hits) < size:
                return
            after, limit = hits[-1]["sort"], limit - size

    def bulk(self, index: str, documents: Sequence[tuple[str, bytes]], shown: Callable[[int], str]) -> None:
        """Write documents, and check what became of each. Those that are not written for a while are repeated.

        Args:
            index: An alias, so that no index of this name is made if it is gone.
            documents: The id of each document, and its two lines of a bulk request.
            shown: Returns the object with an index as text, for the error.

        Raises:
            DataError: A document is refused.
            RetriableError: The index is gone, or documents were not written for the whole time of the policy.
        """
        attempts, waiting = self._attempts(), list(range(len(documents)))
        while waiting:
            body = b"".join(documents[place][1] for place in waiting)
            answer = self.call(
                lambda client, body=body: client.bulk(body=body, index=index, params={"require_alias": "true"})  # type: ignore[misc] # of the loop
            )
            again, reason = [], ""
            for place, item in zip(waiting, answer["items"], strict=True):
                outcome = item["index"]
                status, cause = outcome["status"], str(outcome.get("error", {}).get("reason", ""))
                if status < 300 or status == _NEWER:  # another follower has written a newer one
                    continue
                if _is_busy(status):
                    again.append(place)
                    reason = cause
                elif status == _GONE:
                    raise RetriableError(f"the index behind {index!r} is gone: {cause}", advice=_AGAIN)
                elif status == _REFUSED:
                    raise DataError(
                        f"OpenSearch refuses {shown(place)}: {cause}", advice="correct the row in its datasource"
                    )
                else:
                    raise ConfigurationError(f"OpenSearch refuses {shown(place)} with code {status}: {cause}")
            if again:
                self._pause(attempts, RetriableError(f"OpenSearch is busy: {reason}", advice=_AGAIN))
            waiting = again

    def _attempts(self) -> RetryCount:
        return RetryCount(self._policy, SystemClock(), Random())

    def _pause(self, attempts: RetryCount, error: RetriableError) -> None:
        pause = attempts.fail(error)
        if attempts.exhausted:
            raise attempts.last_error(error)
        time.sleep(pause)

    def _failure(self, error: Any) -> ForebayError:  # noqa: ANN401 - of a library that may be missing
        status = error.status_code
        if _is_busy(status) or isinstance(error, self._errors.ConnectionError):
            return RetriableError(f"OpenSearch does not answer: {error}", advice=_AGAIN)
        if status in (401, 403):
            return ConfigurationError(
                f"OpenSearch refuses the user: {error}", option="hosts", advice="correct the name and the password"
            )
        return ConfigurationError(f"OpenSearch refuses the request: {error}")


def _is_busy(status: object) -> bool:
    """Return whether the same request may succeed after an answer with this code."""
    return isinstance(status, int) and (status == 429 or status >= 500)
