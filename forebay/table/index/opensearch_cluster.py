# SPDX-License-Identifier: Apache-2.0
"""Requests to OpenSearch: repeated while it is busy, checked item by item, and with errors that say what to do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

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
_TOO_LARGE: Final = 413
_KEEP_ALIVE: Final = "10m"
_AGAIN: Final = "call it again; nothing is lost"

_NEXT_STEPS: Final = {
    "cluster_block_exception": "remove the block, such as index.blocks.write or cluster.blocks.read_only, and call it "
    "again",
    "index_closed_exception": "open the index or remove it, and call it again",
}
"""What to do about errors of OpenSearch, by their type."""

_TLS: Final = "begin the URL with http:// or https:// as the server does, or pass a client that trusts its certificate"

_NO_NAME = re.compile(r"[\\/*?\"<>|,#:\s\x00-\x1f]|^[-_+]|^\.\.?$")
_NAME_BYTES: Final = 200
"""The longest alias. OpenSearch takes 255 bytes; names of indexes have a few more than their alias."""

_FIRST_HITS: Final = 100
_MOST_HITS: Final = 2_000
_ANSWER_BYTES: Final = 8 << 20
"""How long the answer to a search may be, about: OpenSearch keeps it in memory. Hits before show how long they are."""


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
        ConfigurationError: opensearch-py is not installed, or a URL cannot be used.
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
            self.client = opensearchpy.OpenSearch(hosts=_urls(hosts), timeout=60, max_retries=0)

    def call(self, request: Callable[[OpenSearch], T]) -> T:
        """Return what a request returns, repeated while the cluster does not answer or is busy.

        Raises:
            RetriableError: It was so for the whole time of the policy, or what answers is not OpenSearch.
            ConfigurationError: The cluster refuses the request.
            MissingError: There is no such index, document or point in time.
        """
        attempts = self._attempts()
        while True:
            try:
                answer = request(self.client)
                if isinstance(answer, Mapping):
                    return answer
                self._pause(attempts, _no_opensearch(answer))
            except self._errors.NotFoundError as error:
                raise MissingError(str(error)) from error
            except self._errors.SerializationError as error:  # perhaps a page of what stands before OpenSearch
                self._pause(attempts, _no_opensearch(error))
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
        before = ""
        while True:
            try:
                indexes = self.own_indexes(alias, owner)
            except MissingError:
                return None
            foreign = [name for name, meta in indexes.items() if meta is None]
            if foreign or len(indexes) > 1:
                raise ConfigurationError(
                    f"{alias!r} of OpenSearch is {', '.join(foreign or indexes)}, which is not of "
                    + ", ".join(f"{name} {value!r}" for name, value in owner.items()),
                    option="name",
                    advice="give another name; or remove the index if nobody needs it",
                )
            if not indexes:
                raise _no_opensearch(indexes)
            name, meta = indexes.popitem()
            try:
                document = self.call(lambda client, name=name: client.get(index=name, id=PROGRESS))  # type: ignore[misc] # of the loop
            except MissingError:
                if name == before:
                    return None
                before = name  # was it replaced meanwhile?
                continue
            match document:
                case {"_source": {"progress": {"data": int(data), "attempt": str(attempt), "edits": int(edits)}}}:
                    return Indexed(name, meta or {}, data, attempt, edits)
            return None  # someone else has changed it

    def own_indexes(self, names: str, owner: Mapping[str, object]) -> dict[str, Mapping[str, Any] | None]:
        """Return what indexes say of themselves, by name; None for those of someone else."""
        answer = self.call(lambda client: client.indices.get(index=names))
        if not all(isinstance(each, dict) and isinstance(each.get("mappings"), dict) for each in answer.values()):
            raise _no_opensearch(answer)
        metas = {name: each["mappings"].get("_meta", {}).get("forebay", {}) for name, each in answer.items()}
        return {name: meta if owner.items() <= meta.items() else None for name, meta in metas.items()}

    def has_alias(self, alias: str) -> bool:
        """Return whether there is an alias."""
        try:
            self.call(lambda client: client.indices.get_alias(name=alias))
        except MissingError:
            return False
        return True

    def create(self, name: str, body: Mapping[str, Any]) -> None:
        """Create an index. Its name is new, so one that exists is of a request whose answer was lost."""
        try:
            answer = self.call(lambda client: client.indices.create(index=name, body=body, params={"ignore": _REFUSED}))
        except MissingError as error:
            raise _no_opensearch(error) from error
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
        window = _FIRST_HITS
        while limit > 0:
            size = min(limit, window)
            following = {} if after is None else {"search_after": list(after)}
            hits = self.search(point, {**body, "size": size, "track_total_hits": False, **following})["hits"]["hits"]
            yield from hits
            if len(hits) < size or size == limit:
                return
            after, limit = hits[-1]["sort"], limit - size
            window = max(1, min(_MOST_HITS, _ANSWER_BYTES // max(len(repr(hit)) for hit in hits)))

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
            try:
                answer = self.call(
                    lambda client, body=body: client.bulk(body=body, index=index, params={"require_alias": "true"})  # type: ignore[misc] # of the loop
                )
            except ConfigurationError as error:
                if getattr(error.__cause__, "status_code", None) != _TOO_LARGE:
                    raise
                longest = max(waiting, key=lambda place: len(documents[place][1]))
                raise DataError(
                    f"OpenSearch refuses {shown(longest)}: its document has {len(documents[longest][1]):,} bytes",
                    advice="correct the row in its datasource, or raise http.max_content_length of OpenSearch",
                ) from error
            again, reason, advice = [], "", _AGAIN
            for place, item in zip(waiting, answer["items"], strict=True):
                outcome = item["index"]
                status, cause = outcome["status"], str(outcome.get("error", {}).get("reason", ""))
                if status < 300 or status == _NEWER:  # another follower has written a newer one
                    continue
                if _is_busy(status):
                    again.append(place)
                    reason, advice = cause, _busy_advice(outcome.get("error", {}).get("type"))
                elif status == _GONE:
                    raise RetriableError(f"the index behind {index!r} is gone: {cause}", advice=_AGAIN)
                elif status == _REFUSED:
                    raise DataError(
                        f"OpenSearch refuses {shown(place)}: {cause}", advice="correct the row in its datasource"
                    )
                else:
                    raise ConfigurationError(
                        f"OpenSearch refuses {shown(place)} with code {status}: {cause}",
                        advice=_NEXT_STEPS.get(outcome.get("error", {}).get("type")),
                    )
            if again:
                self._pause(attempts, RetriableError(f"OpenSearch is busy: {reason}", advice=advice))
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
            does_not = f"OpenSearch does not answer: {error}"
            if isinstance(error, self._errors.SSLError):
                return RetriableError(does_not, option="hosts", advice=_TLS)
            if isinstance(error, self._errors.ConnectionError):
                return RetriableError(does_not, option="hosts", advice=f"start it, or correct its URL, and {_AGAIN}")
            return RetriableError(does_not, advice=_busy_advice(error.error))
        if (advice := _NEXT_STEPS.get(str(error.error))) is not None:
            return ConfigurationError(f"OpenSearch refuses the request: {error}", advice=advice)
        if status in (401, 403):
            return ConfigurationError(
                f"OpenSearch refuses the user: {error}", option="hosts", advice="correct the name and the password"
            )
        return ConfigurationError(f"OpenSearch refuses the request: {error}")


def checked_name(name: object) -> str:
    """Return the name of an alias.

    Raises:
        ConfigurationError: OpenSearch takes no such name, or would find several indexes by it.
    """
    text = name if isinstance(name, str) else ""
    size = len(text.encode(errors="replace"))
    if not 0 < size <= _NAME_BYTES or text != text.lower() or _NO_NAME.search(text):
        raise ConfigurationError(
            f"{name!r:.200} cannot be a name of OpenSearch",
            option="name",
            advice=f"give a name of at most {_NAME_BYTES} bytes in lower case, such as name='orders': without blanks "
            'and \\ / * ? " < > | , # :, and not beginning with _ - +',
        )
    return text


def _urls(hosts: object) -> list[str]:
    """Return URLs. What is wrong with one is not shown, because it may have a password."""
    urls = [hosts] if isinstance(hosts, str) else list(hosts) if isinstance(hosts, Sequence) else []
    if not urls or not all(isinstance(url, str) and _is_url(url) for url in urls):
        raise ConfigurationError(
            "the hosts of OpenSearch are no URLs",
            option="hosts",
            advice="write http://host:9200, or https://user:password@host:9200 with %-escapes for the characters "
            "/ ? # @ : % [ ] of the password; or pass a client of opensearch-py",
        )
    return urls


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        # A name without a password is refused, because the client cannot take it.
        known = parts.scheme in ("", "http", "https") and (parts.username is None) == (parts.password is None)
        return known and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _no_opensearch(answer: object) -> RetriableError:
    return RetriableError(
        f"what answers is not OpenSearch: {answer!r:.200}",
        option="hosts",
        advice=f"correct the URL; or {_AGAIN}, if something before OpenSearch answers in its place for a while",
    )


def _busy_advice(kind: object) -> str:
    """Return what to do while OpenSearch is busy, by the type of its error."""
    return f"free its disk, or remove the block, and {_AGAIN}" if kind == "cluster_block_exception" else _AGAIN


def _is_busy(status: object) -> bool:
    """Return whether the same request may succeed after an answer with this code."""
    return isinstance(status, int) and (status == 429 or status >= 500)
