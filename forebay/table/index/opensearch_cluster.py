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
from forebay.table.index.definition import ObjectType, refused
from forebay.table.index.opensearch_documents import PROGRESS, UNREADABLE

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

T = TypeVar("T")
Answer = Mapping[str, Any]
Hit = Mapping[str, Any]
Request = Callable[["OpenSearch"], Any]

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

_NO_NAME = re.compile(r"[\\/*?\"<>|,#:\s]|^[-_+]|^\.\.?$")
_NAME_BYTES: Final = 200
"""The longest alias. OpenSearch takes 255 bytes; names of indexes have a few more than their alias."""

_FIRST_HITS: Final = 100
_MOST_HITS: Final = 2_000
_ANSWER_BYTES: Final = 8 << 20
"""How long the answer to a search may be, about: OpenSearch keeps it in memory. Hits before show how long they are."""


_TOO_MANY: Final = "maxClauseCount is set to"
"""What OpenSearch says of a question with too many conditions."""

_LEAST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 60.0
"""Seconds in which the next bytes of an answer must come."""


class MissingError(RetriableError):
    """There is no such index or document in OpenSearch, or a point in time has ended."""


@dataclass(frozen=True)
class Indexed:
    """An index of OpenSearch, and how far it is.

    Args:
        name: Its name.
        meta: What it says of itself.
        pipeline: The pipeline whose objects it has.
        definition: Their definition.
        data: The number of the last fact of the log that all its documents contain.
        attempt: The attempt that put this fact.
        edits: The offset of the last edit that they contain.
    """

    name: str
    meta: Mapping[str, Any]
    pipeline: str
    definition: ObjectType
    data: int
    attempt: str
    edits: int


class Cluster:
    """A cluster of OpenSearch. For any thread. Requests are repeated while it does not answer or is busy.

    Args:
        hosts: Its URL, or several; or a client of opensearch-py, with what it needs of TLS and passwords.
        policy: How long requests are repeated. Without a client of the caller, the next bytes of an answer must come
            in this time too, or in a minute if that is shorter.

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
        if not isinstance(policy, RetryPolicy | None):
            raise refused("retry", policy, "give a RetryPolicy, or None")
        self._policy = policy or RetryPolicy()
        if isinstance(hosts, opensearchpy.OpenSearch):
            self.client = hosts
        else:
            wait = min(_LONGEST_WAIT, max(_LEAST_WAIT, self._policy.timeout))
            self.client = _client(hosts, lambda urls: opensearchpy.OpenSearch(hosts=urls, timeout=wait, max_retries=0))

    def call(self, request: Request, read: Callable[[Answer], T]) -> T:
        """Return what a request returns, repeated while the cluster does not answer or is busy.

        Args:
            request: The request.
            read: Takes the answer apart. It raises one of `UNREADABLE` if OpenSearch gives no such answer.

        Raises:
            RetriableError: It was so for the whole time of the policy, or what answers is not OpenSearch.
            ConfigurationError: The cluster refuses the request.
            MissingError: There is no such index, document or point in time.
        """
        attempts = self._attempts()
        while True:
            try:
                return self._asked(request, read)
            except MissingError:
                raise
            except RetriableError as error:
                self._pause(attempts, error)

    def _asked(self, request: Request, read: Callable[[Answer], T]) -> T:
        """Return what a request returns that is made once."""
        answer: object = None
        try:
            try:
                answer = request(self.client)
                if not isinstance(answer, Mapping):
                    raise TypeError("no object")
                return read(answer)
            except self._errors.TransportError as error:
                raise self._failure(error) from error  # it takes the answer apart too
        except (self._errors.SerializationError, *UNREADABLE) as error:  # perhaps a page of what is before OpenSearch
            raise _no_opensearch(error if answer is None else answer) from error

    def indexed(self, alias: str, owner: Mapping[str, object]) -> Indexed | None:
        """Return the index that an alias names; None if there is none, or it was not finished.

        Args:
            alias: The alias.
            owner: What the index must say of itself.

        Raises:
            ConfigurationError: It was made by someone else.
            DataError: Someone else has changed what it says of itself.
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
                    + ", ".join(f"{'format' if name == 'v' else name} {value!r}" for name, value in owner.items()),
                    option="name",
                    advice="give another name, or the object type of this index; _meta in its mapping says whose it is",
                )
            if not indexes:
                raise _no_opensearch(indexes)
            name, meta = indexes.popitem()
            try:
                document = self.call(lambda client, name=name: client.get(index=name, id=PROGRESS), dict)  # type: ignore[misc] # of the loop
            except MissingError:
                if name == before:
                    return None
                before = name  # was it replaced meanwhile?
                continue
            match document:
                case {"_source": {"progress": {"data": int(data), "attempt": str(attempt), "edits": int(edits)}}}:
                    pipeline, definition = _definition_of(name, meta or {})
                    return Indexed(name, meta or {}, pipeline, definition, data, attempt, edits)
            return None  # someone else has changed it

    def own_indexes(self, names: str, owner: Mapping[str, object]) -> dict[str, Mapping[str, Any] | None]:
        """Return what indexes say of themselves, by name; None for those of someone else."""
        mappings = self.call(
            lambda client: client.indices.get(index=names),
            lambda answer: {name: dict(each["mappings"]) for name, each in answer.items()},
        )
        found: dict[str, Mapping[str, Any] | None] = dict.fromkeys(mappings)
        for name, mapping in mappings.items():
            match mapping:
                case {"_meta": {"forebay": dict(meta)}} if all(meta.get(each) == owner[each] for each in owner):
                    found[name] = meta
        return found

    def has_alias(self, alias: str) -> bool:
        """Return whether there is an alias."""
        try:
            self.call(lambda client: client.indices.get_alias(name=alias), dict)
        except MissingError:
            return False
        return True

    def create(self, name: str, body: Mapping[str, Any]) -> None:
        """Create an index. Its name is new, so one that exists is of a request whose answer was lost."""
        try:
            kind, failure = self.call(
                lambda client: client.indices.create(index=name, body=body, params={"ignore": _REFUSED}),
                lambda answer: (answer["error"]["type"], answer["error"]) if "error" in answer else (None, None),
            )
        except MissingError as error:
            raise _no_opensearch(error) from error
        if kind not in (None, "resource_already_exists_exception"):
            raise ConfigurationError(f"OpenSearch makes no index {name!r}: {failure}", option="settings")

    def remove(self, name: str) -> None:
        """Remove an index whose build failed. If that fails too, the next build removes it."""
        with suppress(ForebayError):
            self._asked(lambda client: client.indices.delete(index=name), dict)

    def open_point(self, index: str) -> str:
        """Open a point in time of an index, which lives as long as it is asked at least every 10 minutes."""
        return self.call(
            lambda client: client.create_pit(index=index, params={"keep_alive": _KEEP_ALIVE}),
            lambda opened: _text(opened["pit_id"]),
        )

    def close_point(self, point: str) -> None:
        """Close a point in time. One that is not closed ends by itself."""
        with suppress(ForebayError):
            self._asked(lambda client: client.delete_pit(body={"pit_id": [point]}), dict)

    def count(self, point: str, query: Mapping[str, Any]) -> int:
        """Return the number of documents that a query finds at a point in time.

        Raises:
            MissingError: The point in time has ended.
        """
        body = {"query": query, "size": 0, "track_total_hits": True}
        return self._search(point, body, lambda answer: int(answer["hits"]["total"]["value"]))

    def _search(self, point: str, body: Mapping[str, Any], read: Callable[[Answer], T]) -> T:
        whole = {"pit": {"id": point, "keep_alive": _KEEP_ALIVE}, **body}
        partial = {"allow_partial_search_results": "false"}
        try:
            return self.call(lambda client: client.search(body=whole, params=partial), read)
        except ConfigurationError as error:
            error.option, error.advice = "where", "ask in smaller queries; a list, as in where(name=[…]), counts as one"
            raise

    def hits(
        self, point: str, body: Mapping[str, Any], limit: int, after: Sequence[Any] | None = None
    ) -> Iterator[Hit]:
        """Yield at most `limit` hits of a search at a point in time, after the one with the sort values `after`.

        Raises:
            MissingError: The point in time has ended.
        """
        window = _FIRST_HITS
        while limit > 0:
            size = min(limit, window)
            following = {} if after is None else {"search_after": list(after)}
            whole = {**body, "size": size, "track_total_hits": False, **following}
            hits = self._search(point, whole, lambda answer: _hits(answer, body))
            yield from hits
            if len(hits) < size or size == limit:
                return
            after, limit = hits[-1]["sort"], limit - size
            window = max(1, min(_MOST_HITS, _ANSWER_BYTES // max(len(repr(hit)) for hit in hits)))

    def bulk(self, index: str, documents: Sequence[bytes], shown: Callable[[int], str]) -> None:
        """Write documents, and check what became of each. Those that are not written for a while are repeated.

        Args:
            index: An alias, so that no index of this name is made if it is gone.
            documents: The two lines of each document; see `bulk_lines`.
            shown: Returns the object with an index as text, for the error.

        Raises:
            DataError: A document is refused.
            RetriableError: The index is gone, or documents were not written for the whole time of the policy.
        """
        attempts, waiting = self._attempts(), list(range(len(documents)))
        while waiting:
            body, size = b"".join(documents[place] for place in waiting), len(waiting)
            try:
                outcomes = self.call(
                    lambda client, body=body: client.bulk(body=body, index=index, params={"require_alias": "true"}),  # type: ignore[misc] # of the loop
                    lambda answer, size=size: _outcomes(answer, size),  # type: ignore[misc] # of the loop
                )
            except ConfigurationError as error:
                if getattr(error.__cause__, "status_code", None) != _TOO_LARGE:
                    raise
                longest = max(waiting, key=lambda place: len(documents[place]))
                raise DataError(
                    f"OpenSearch refuses {shown(longest)}: its document has {len(documents[longest]):,} bytes",
                    advice="correct the row in its datasource, or raise http.max_content_length of OpenSearch",
                ) from error
            again, reason, advice = [], "", _AGAIN
            for place, (status, kind, cause) in zip(waiting, outcomes, strict=True):
                if status < 300 or status == _NEWER:  # another follower has written a newer one
                    continue
                if _is_busy(status):
                    again.append(place)
                    reason, advice = cause, _busy_advice(kind)
                elif status == _GONE:
                    raise RetriableError(f"the index behind {index!r} is gone: {cause}", advice=_AGAIN)
                elif status == _REFUSED:
                    raise DataError(
                        f"OpenSearch refuses {shown(place)}: {cause}", advice="correct the row in its datasource"
                    )
                else:
                    raise ConfigurationError(
                        f"OpenSearch refuses {shown(place)} with code {status}: {cause}",
                        advice=_NEXT_STEPS.get(kind),
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
        if status == _GONE:
            return MissingError(f"OpenSearch has nothing of this name any more: {error}", advice=_AGAIN)
        too_many = _TOO_MANY in str(error)  # which has the code 500
        if not too_many and (_is_busy(status) or isinstance(error, self._errors.ConnectionError)):
            does_not = f"OpenSearch does not answer: {error}"
            if isinstance(error, self._errors.SSLError):
                return RetriableError(does_not, option="hosts", advice=_TLS)
            if isinstance(error, self._errors.ConnectionError):
                return RetriableError(does_not, option="hosts", advice=f"start it, or correct its URL, and {_AGAIN}")
            return RetriableError(does_not, advice=_busy_advice(error.error))
        advice = _NEXT_STEPS.get(str(error.error))
        if advice is None and status in (401, 403):
            return ConfigurationError(
                f"OpenSearch refuses the user: {error}", option="hosts", advice="correct the name and the password"
            )
        return ConfigurationError(f"OpenSearch refuses the request: {error}", advice=advice)


# -- Take answers apart, which may be anything: each function raises one of `UNREADABLE` for any other answer.


def _outcomes(answer: Mapping[str, Any], size: int) -> list[tuple[int, str, str]]:
    """Return what became of the documents of a bulk request, which are so many.

    Returns:
        For each, the code of HTTP, the type of its error, which is empty if there is none, and the error.
    """
    outcomes = [_outcome(item) for item in answer["items"]]
    if len(outcomes) != size:
        raise TypeError("another number of items")
    return outcomes


def _outcome(item: object) -> tuple[int, str, str]:
    match item:
        case {"index": {"status": int(status), "error": {"type": str(kind), **rest}}}:
            return status, kind, str(rest.get("reason", ""))
        case {"index": {"status": int(status)}}:
            return status, "", ""
    raise TypeError("no item of a bulk request")


def _hits(answer: Mapping[str, Any], body: Mapping[str, Any]) -> Sequence[Hit]:
    """Return the hits of a search, which have an id, and what was asked of them: a version, values that sort them."""
    hits = answer["hits"]["hits"]
    kinds: dict[str, type] = {"_id": str}
    if "version" in body:
        kinds["_version"] = int
    if "sort" in body:
        kinds["sort"] = list
    if not isinstance(hits, list) or not all(
        isinstance(hit[name], kind) for hit in hits for name, kind in kinds.items()
    ):
        raise TypeError("no hits")
    return hits


def _text(value: object) -> str:
    """Return a text of an answer."""
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


# -- Names and hosts


def checked_name(name: object) -> str:
    """Return the name of an alias.

    Raises:
        ConfigurationError: OpenSearch takes no such name, or would find several indexes by it.
    """
    text = name if isinstance(name, str) else ""
    plain = text.isprintable() and text == text.lower() and not _NO_NAME.search(text)
    if not plain or not 0 < len(text.encode()) <= _NAME_BYTES:
        raise ConfigurationError(
            f"{name!r:.200} cannot be a name of OpenSearch",
            option="name",
            advice=f"give a name of at most {_NAME_BYTES} bytes in lower case, such as name='orders': without blanks, "
            'characters that cannot be seen, and \\ / * ? " < > | , # :, and not beginning with _ - +',
        )
    return text


def _definition_of(name: str, meta: Mapping[str, Any]) -> tuple[str, ObjectType]:
    """Return the pipeline of an index, and its definition."""
    try:
        return _text(meta["pipeline"]), ObjectType.from_facts(meta["definition"])
    except (ConfigurationError, *UNREADABLE) as error:
        raise DataError(
            f"the index {name!r} of OpenSearch does not say what it has: someone else has changed its _meta",
            option="name",
            advice="build it again: call OpenSearchIndex.catch_up, or run `forebay index opensearch`",
        ) from error


def _client(hosts: object, make: Callable[[list[str]], OpenSearch]) -> OpenSearch:
    """Return the client of URLs. What is wrong with one is not shown, because it may have a password."""
    urls = [hosts] if isinstance(hosts, str) else list(hosts) if isinstance(hosts, Sequence) else []
    if urls and all(isinstance(url, str) and _is_url(url) for url in urls):
        with suppress(ValueError):  # of urllib3 too: it takes no such host, and passwords in Latin-1 alone
            return make(urls)
    raise ConfigurationError(
        "the hosts of OpenSearch are no URLs",
        option="hosts",
        advice="write http://host:9200, or https://user:password@host:9200 with %-escapes for the characters "
        "/ ? # @ : % [ ] of the password, which has characters of Latin-1 alone; or pass a client of opensearch-py",
    )


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        # A name without a password is refused, because the client cannot take it.
        known = parts.scheme in ("", "http", "https") and (parts.username is None) == (parts.password is None)
        # A directory, such as the location of a funnel, would be looked for as a host for minutes.
        return known and bool(parts.hostname) and parts.port != 0 and ("://" in url or parts.port is not None)
    except ValueError:
        return False


def _no_opensearch(answer: object) -> RetriableError:
    return RetriableError(
        f"what answers is not OpenSearch: {_shown(answer)}",
        option="hosts",
        advice=f"correct the URL; or {_AGAIN}, if something before OpenSearch answers in its place for a while",
    )


def _shown(answer: object) -> str:
    """Return the beginning of an answer, which may be nested so deeply that Python does not show it whole."""
    try:
        return f"{answer!r:.200}"
    except RecursionError:
        return f"{type(answer).__name__} in which too much is nested"


def _busy_advice(kind: object) -> str:
    """Return what to do while OpenSearch is busy, by the type of its error."""
    return f"free its disk, or remove the block, and {_AGAIN}" if kind == "cluster_block_exception" else _AGAIN


def _is_busy(status: object) -> bool:
    """Return whether the same request may succeed after an answer with this code."""
    return isinstance(status, int) and (status == 429 or status >= 500)
