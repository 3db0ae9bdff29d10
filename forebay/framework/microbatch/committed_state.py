# SPDX-License-Identifier: Apache-2.0
"""The committed state of a stream: which splits are open, waiting and done, and where the next micro-batch begins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.framework.microbatch.admission import unknown_end
from forebay.framework.microbatch.end_negotiation import NegotiatedSplits
from forebay.framework.microbatch.offset import BEFORE_FIRST, Offset, Planned, UnknownEnd
from forebay.framework.microbatch.offset_codec import EndedSplits, FinishedSplits, OffsetCodec
from forebay.framework.microbatch.split_provider import SplitProvider
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.connector_errors import without_secrets
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split
from forebay.options import changed_on_restart, class_options, format_options

# -- Continues from a checkpoint of a source without forebay: its last offset becomes the start of a new query (S2).


class OffsetMigration:
    """Converts offsets of a source without forebay, such as Spark's own, with the author's `DiscoveryEnumerator.adopt`.

    The result is the offset before the first micro-batch, but with splits. So the enumerator counts as restored, and
    its next `discover` is called with `first=False`.
    """

    def __init__(self, source: Source, split_provider: SplitProvider, calls: ConnectorCalls) -> None:
        self._source = source
        self._split_provider = split_provider
        self._calls = calls

    def adopt(self, data: Any) -> Offset | None:  # noqa: ANN401 - any JSON value of any checkpoint
        """Return the converted offset; None if a forebay source wrote `data`, or the author's `adopt` returned None."""
        enumerator = self._split_provider.enumerator
        if enumerator is None or not is_foreign(data):
            return None
        splits = self._calls.call("adopt()", lambda: enumerator.adopt(data))
        if splits is None:
            return None
        self._split_provider.restore(None)
        return Offset(self._source.name, splits=[Planned(split, split.position) for split in splits])


def is_foreign(data: object) -> bool:
    """Return whether `data` is an offset of a source that does not use forebay: its JSON has no version."""
    return isinstance(data, Mapping) and "v" not in data


def unfinished_replay(source: str) -> ConfigurationError:
    """Return the error for a checkpoint whose last micro-batch was planned by another source and is not finished."""
    return ConfigurationError(
        "the last micro-batch in the checkpoint was planned by another source and is not finished",
        source=source,
        option="checkpointLocation",
        advice="first finish that micro-batch: run the query once with the old source and trigger(availableNow=True)",
    )


# -- Keeps a query from restarting with changed options or another inferred schema.


_COMMA = ", "


@dataclass(frozen=True)
class RestartGuard:
    """The options and the inferred schema of a query, which must not change between runs.

    They are written into every offset, and compared with an offset when a run starts from it.

    Args:
        source: The source.
        options: The options that must not change, as texts by name; contains no secret.
        schema: The inferred columns and their types, as a text; empty if the schema was not inferred.
        same: Another text of the same schema: `schema` lists whole columns and `same` the fields inside structs, or
            the reverse.
        adds_columns: Whether the source may infer more columns after a restart, also inside structs.
    """

    source: Source
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str = ""
    same: str = ""
    adds_columns: bool = False

    @classmethod
    def of(cls, source: Source, options: HostOptions, inferred: pa.Schema | None) -> RestartGuard:
        """Return the guard for the present options of a source and host; `inferred` is None for a given schema."""
        texts: dict[str, str] = {}
        for owner in (source, options):
            specs = [spec for spec in class_options(type(owner)) if not spec.may_change]
            values = {spec.python_name: getattr(owner, spec.python_name) for spec in specs}
            texts |= format_options(specs, values)
        if inferred is None:
            return cls(source, texts)
        columns, leaves = schema_text(inferred), _COMMA.join(_leaves(inferred))
        # A source that may add columns, such as forebay_files, has this property.
        if getattr(source, "adds_columns", False):
            return cls(source, texts, leaves, columns, adds_columns=True)
        return cls(source, texts, columns, leaves)

    def check(self, offset: Offset) -> None:
        """Check that an offset was written with the same options and the same inferred schema.

        Raises:
            ConfigurationError: An option or the schema differs. The error names all such options, or both schemas.
        """
        if offset.n == BEFORE_FIRST:
            return
        specs = [*class_options(type(self.source)), *class_options(HostOptions)]
        changed_on_restart(specs, offset.options, self.options, source=self.source.name)
        if offset.schema and self.schema and not self._continues(offset.schema):
            raise ConfigurationError(
                f"the inferred schema has changed since the query began: it was {offset.schema}, and is now "
                f"{self.schema}",
                source=self.source.name,
                option="schema",
                advice="give the schema with .schema(…): the old one, or a new one that the sink of the query accepts",
            )

    def _continues(self, before: str) -> bool:
        """Return whether a query that began with the schema `before` may continue with the present schema."""
        if before in (self.schema, self.same):
            return True
        now = {*self.schema.split(_COMMA), *self.same.split(_COMMA)}
        return self.adds_columns and now.issuperset(before.split(_COMMA))


def schema_text(schema: pa.Schema) -> str:
    """Return the columns of a schema and their types as one line of text."""
    return _COMMA.join(f"{field.name}: {field.type}" for field in schema)


def _leaves(fields: Iterable[pa.Field], above: str = "") -> Iterator[str]:
    """Yield each column and its type as a text. For a nested column, yield its fields instead, with dotted names."""
    for each in fields:
        path = above + each.name
        inside = [each.type.field(at) for at in range(each.type.num_fields)]
        if inside:
            yield from _leaves(inside, f"{path}.")
        else:
            yield f"{path}: {each.type}"


# -- The committed state of a stream: which splits are open, waiting and done, and where the next micro-batch begins.

_log = logging.getLogger(__name__)

_NOTHING: Final = Offset("")


class CommittedState:
    """The splits of a query after its last committed micro-batch. Called on the planning thread.

    A micro-batch is committed only when Spark requests the next one. A new planner continues from any offset exactly as
    this one does (S1, S2).
    """

    def __init__(
        self,
        source: Source,
        *,
        split_provider: SplitProvider,
        offset_codec: OffsetCodec,
        migration: OffsetMigration,
        restart_guard: RestartGuard,
        negotiated: NegotiatedSplits | None,
    ) -> None:
        self._source = source
        self._split_provider = split_provider
        self._codec = offset_codec
        self._migration = migration
        self._restart_guard = restart_guard
        self._negotiated = negotiated
        self._planned = _NOTHING  # the micro-batch planned after `at`
        self._cold = True
        self._replayed: int | None = None
        self._notified = BEFORE_FIRST
        self._unreported: Sequence[Split] = ()
        self.at: Offset = _NOTHING
        """The last committed micro-batch."""
        self.open: dict[str, Split] = {}
        """Splits that are begun and not finished, by id; the one that has waited longest is first."""
        self.waiting: dict[str, Split] = {}
        """Splits that are discovered and not begun, by id, if the source is read in order."""
        self.done = FinishedSplits(source.split_class)
        """The splits that committed micro-batches have finished."""

    def planned(self, offset: Offset) -> None:
        """Record the micro-batch that was planned after the last committed one."""
        self._planned = offset

    def replaying(self, n: int) -> None:
        """Record that Spark requests the tasks of micro-batch `n`: a replay, if this process has committed nothing."""
        if self._cold:
            self._replayed = n

    def read(self, data: Any) -> Offset:  # noqa: ANN401 - any JSON value of any checkpoint
        """Return an offset from its JSON. The author's `adopt` converts the offset of a source without forebay."""
        return self._migration.adopt(data) or self._codec.read(data)

    def go_on_from(self, start: Mapping[str, Json]) -> bool:
        """Commit the micro-batch with the offset `start`, and all before it; return False if it was committed already.

        Raises:
            ForebayError: The stream cannot continue from this offset.
        """
        identity = identity_of(start)
        if not self._cold and identity == (self._planned.query, self._planned.n):
            done = self._resolved(self._planned)
            self.done.mark_written()
            self._advance(done)
        elif self._cold or identity != (self.at.query, self.at.n):
            self._restore(start)
        else:
            return False
        return True

    def commit(self, end: Mapping[str, Json]) -> None:
        """Report to the source the splits that the micro-batch with the offset `end` finished. Never raises."""

        def report() -> None:
            offset = self.read(end)
            if offset.n > self._notified:
                self._notified = offset.n
                self._report_finished([planned.split for planned in offset.splits if planned.ends])
            if offset.n != BEFORE_FIRST:
                self._codec.batch_committed(offset)
            if self._negotiated is not None:
                self._negotiated.forget(offset)

        self._quietly(report)

    def negotiation(self, offset: Offset) -> NegotiatedSplits:
        """Return the `NegotiatedSplits` of the query. Called for an offset with ends that tasks negotiate.

        Raises:
            ConfigurationError: Ends cannot be negotiated, because `stateLocation` is not set.
        """
        if self._negotiated is None:
            raise unknown_end(self._source, negotiated_of(offset)[0].split)
        return self._negotiated

    def _restore(self, start: Mapping[str, Json]) -> None:
        offset = self.read(start)
        self._restart_guard.check(offset)
        offset = self._resolved(offset)
        self.open, self.waiting = {}, {}
        foreign = is_foreign(start)
        self.done = FinishedSplits(self._source.split_class) if foreign else self._codec.read_done(start)
        self.done.mark_written()
        if offset.n != BEFORE_FIRST:
            self._split_provider.restore(offset.enumerator)
        # A micro-batch that this process replayed may be replayed again, so its finished splits are reported at commit.
        more: list[Split] = []
        if self._replayed is None or offset.n > self._replayed:
            more = [planned.split for planned in offset.splits if planned.ends]
            self._notified = offset.n
        ended = EndedSplits(self.done, more)
        self._cold = False
        self._advance(offset)
        if ended:
            self._quietly(lambda: self._report_finished(ended))

    def _advance(self, offset: Offset) -> None:
        """Move all splits to their positions after a committed micro-batch, and record the finished ones."""
        ended, served = [], []
        positions: dict[str, Position] = {}
        for planned in offset.splits:
            split, to = planned.split, planned.to
            self.waiting.pop(split.id, None)
            if to is not None and not isinstance(to, UnknownEnd):
                positions[split.id] = to
            if planned.ends:
                self.open.pop(split.id, None)
                ended.append(split)
                continue
            if isinstance(to, UnknownEnd):
                raise unknown_end(self._source, split)
            self.open[split.id] = split.at(to)
            if not planned.empty:
                served.append(split.id)
        for split_id in served:  # a split that was read goes to the end of the queue; offsets keep the order
            self.open[split_id] = self.open.pop(split_id)
        self.done.add(ended)
        self.at, self._planned = offset, _NOTHING
        self._split_provider.batch_committed(offset.n)
        if positions and offset.n != BEFORE_FIRST:
            self._quietly(lambda: self._split_provider.committed(positions))

    def _resolved(self, offset: Offset) -> Offset:
        """Return the offset of a committed micro-batch with the ends that its tasks negotiated."""
        return self.negotiation(offset).resolved(offset) if negotiated_of(offset) else offset

    def _report_finished(self, splits: Sequence[Split]) -> None:
        """Report finished splits to the source. If the call fails, they are reported again with the next ones."""
        self._unreported = [*self._unreported, *splits] if self._unreported else splits
        if self._unreported:
            try:
                self._split_provider.finished(self._unreported)
            except Exception:  # any error of the connector: it is raised again
                self._unreported = list(self._unreported)  # whole splits: they may be condensed to digests later
                raise
            self._unreported = ()

    def _quietly(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - best effort: the query goes on, and the next call reports it again
            _log.warning(
                "%s: notifying the source of committed data failed; the query goes on, and later calls notify it again",
                self._source.name,
                exc_info=without_secrets(error),
            )


def identity_of(offset: object) -> tuple[object, object]:
    """Return the query id and the number of the micro-batch in an offset; (None, None) if it is not a JSON object."""
    return (offset.get("id", ""), offset.get("n")) if isinstance(offset, Mapping) else (None, None)


def negotiated_of(offset: Offset) -> list[Planned]:
    """Return the splits of a micro-batch whose ends the tasks negotiate."""
    return [planned for planned in offset.splits if planned.to is UnknownEnd.NEGOTIATED]
