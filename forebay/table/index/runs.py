# SPDX-License-Identifier: Apache-2.0
"""Runs of jobs: facts `runs/<n>.json` for people and monitors. No commit, merge or answer depends on them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from forebay.clock import Clock, SystemClock
from forebay.errors import FatalError, ForebayError, unwrap
from forebay.state.state_store import StateStore
from forebay.table.changelog.state.facts import FORMAT, fact_bytes
from forebay.table.index.facts import Seconds, numbers_of, stored_object
from forebay.table.index.log import StoppedError

if TYPE_CHECKING:
    from forebay.table.index.pipelines import IndexStore

_log = logging.getLogger(__name__)

_Record = TypeVar("_Record")

KEPT: Final = 200
"""Facts of a journal that are kept at least."""

JOBS: Final = ("commit", "flush", "index", "opensearch", "replacement", "gc")
"""What is done with an object type; see `Run`."""

_SOURCES: Final = ("commit", "flush")
"""Jobs that put facts of the log. Each of the others but `gc` follows them."""

_LONGEST: Final = 4_000
"""Characters of the text of an error that are kept."""


class Journal:
    """Numbered facts of which the last ones are kept. For any thread.

    Args:
        store: The store.
        prefix: The directory, ending in a slash.
    """

    def __init__(self, store: StateStore, prefix: str) -> None:
        self.store = store
        self.prefix = prefix

    def name(self, number: int) -> str:
        """Return the name of a fact."""
        return f"{self.prefix}{number:012d}.json"

    def numbers(self) -> list[int]:
        """Return the numbers of the facts that there are, sorted."""
        return numbers_of(self.store.names(self.prefix), self.prefix)

    def get(self, kind: type[_Record], number: int) -> _Record | None:
        """Return the record of a fact; None if there is none with this number, or it is damaged: nothing needs it."""
        name = self.name(number)
        data = self.store.get(name)
        try:
            return None if data is None else stored_object(kind, data, name)
        except FatalError as error:
            _log.error("%s is left out: %s", name, error.message)
            return None

    def records(self, kind: type[_Record], after: int = 0) -> list[_Record]:
        """Return the records after a number that there are, oldest first, without damaged ones."""
        found = (self.get(kind, number) for number in self.numbers() if number > after)
        return [record for record in found if record is not None]

    def put(self, number: int, record: Any) -> bool:  # noqa: ANN401 - a dataclass
        """Put the fact of a record; return False if there is one with this number, which is in its name alone."""
        content = {name: each for name, each in asdict(record).items() if name != "number"}
        return self.store.put_if_absent(self.name(number), fact_bytes({"v": FORMAT, **content}))

    def append(self, record: Any) -> None:  # noqa: ANN401 - a dataclass
        """Put the fact of a record after all others. When there are `2 * KEPT`, the last `KEPT` stay."""
        # Listed each time: a number that was free for long may be one that was collected.
        numbers = self.numbers()
        while not self.put(max(numbers, default=0) + 1, record):
            numbers = self.numbers()
        if len(numbers) >= 2 * KEPT:
            self.store.delete([self.name(number) for number in numbers[:-KEPT]])


@dataclass(frozen=True)
class Run:
    """A run of a job.

    Args:
        job: What it did, one of `JOBS`.
        name: The datasource, the pipeline, or the alias of the other database.
        begin: When it began, in seconds since 1970.
        seconds: How long it took.
        since: The number of the fact of the log from which it went on; -1: none.
        to: The number of the fact to which it led, or would have led.
        decision: Whether the index was made of the changed keys, or of all.
        reason: Why.
        shares: For each transaction: changed rows, and rows of the datasource before.
        counts: What it counted, by name.
        error: The class of the error with which it failed; empty: it did not fail.
        text: The error, with what to do.
        begun: Whether the job had begun; else it could not read what it needs.
        number: Its number.
    """

    job: str
    name: str
    begin: Seconds = 0.0
    seconds: Seconds = 0.0
    since: int = -1
    to: int = -1
    decision: str = ""
    reason: str = ""
    shares: tuple[tuple[int, int], ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    text: str = ""
    begun: bool = True
    number: int = 0

    @property
    def subject(self) -> str:
        """What runs: the job and its name. Runs with one subject follow each other."""
        return f"{self.job} {self.name}".rstrip()

    @property
    def began(self) -> str:
        """When it began, in UTC, as people write it."""
        return datetime.fromtimestamp(self.begin, UTC).strftime("%Y-%m-%d %H:%M:%S")


def run_journal(index: IndexStore) -> Journal:
    """Return the journal of the runs of an object type."""
    return Journal(index.store, f"{index.directory}runs/")


def runs(index: IndexStore, after: int = 0) -> list[Run]:
    """Return the runs after a number that there are, oldest first."""
    return run_journal(index).records(Run, after)


class Recording:
    """A run that goes on. Its job says in `run` what it did; without `to`, or an error, nothing is recorded."""

    def __init__(self, job: str, name: str) -> None:
        self.run = Run(job, name)

    def did(self, **facts: Any) -> None:  # noqa: ANN401 - fields of `Run`
        """Note what the job does or did: fields of `Run`."""
        self.run = replace(self.run, **facts)


@contextmanager
def recorded(index: IndexStore, job: str, name: str, clock: Clock | None = None) -> Iterator[Recording]:
    """Record a run of a job: one put, at its end. Used by commits, flushes and followers.

    Args:
        index: The store.
        job: What runs; see `Run`.
        name: The datasource, the pipeline or the alias.
        clock: The clock.
    """
    clock = clock or SystemClock()
    recording = Recording(job, name)
    begin, start = clock.now(), clock.monotonic()
    try:
        yield recording
    except StoppedError:  # no fault: another pipeline took its place
        raise
    except Exception as error:
        typed = unwrap(error)
        shown: ForebayError = typed or FatalError(f"{type(error).__name__}: {error}")
        kind = type(typed or error).__name__
        recording.did(error=kind, text=str(shown)[:_LONGEST], to=max(recording.run.to, recording.run.since))
        raise
    finally:
        if recording.run.error or recording.run.to >= 0:
            recording.did(begin=begin, seconds=round(clock.monotonic() - start, 6))
            try:
                run_journal(index).append(recording.run)
            except ForebayError as error:  # what the job did stays done
                _log.warning("%s: a run of %s is not in the list: %s", index.object_type, recording.run.subject, error)


def graph_text(shown: Run, all_runs: list[Run], object_type: str) -> str:
    """Return the jobs through which the facts of the log of a run went, from the datasource to each database, as text.

    Args:
        shown: The run.
        all_runs: All runs that there are, oldest first.
        object_type: The object type.
    """
    first, last = min(shown.since + 1, shown.to) if shown.since >= 0 else shown.to, shown.to
    if shown.job == "gc" or (shown.job in _SOURCES and shown.error):
        commits, later = [shown], []
    else:
        commits = [run for run in all_runs if run.job in _SOURCES and not run.error and first <= run.to <= last]
        later = [run for run in all_runs if run.job not in (*_SOURCES, "gc") and run.since < last and run.to >= first]
    newest = {run.subject: run for run in later}
    if shown.job not in (*_SOURCES, "gc"):
        newest[shown.subject] = shown
    facts = f"facts {first:,} to {last:,}" if last > first else f"fact {last:,}"
    lines = [f"{object_type}: {facts} of the log" if last >= 0 else f"{object_type}: it failed before it read the log"]
    for run in commits:
        source = {"flush": "edits of users ─▶ ", "gc": ""}.get(run.job, f"datasource {run.name} ─▶ ")
        lines.append(source + _shown(run))
    for run in newest.values():
        lines.append(f"  └─▶ {_shown(run)}")
        if run.job == "index" and not run.error:
            lines.append("        └─▶ nodes: from their next refresh on")
    if shown.job in _SOURCES and shown.error:
        lines.append("  └─▶ nothing: it was not committed")
    elif shown.job in _SOURCES and not newest:
        # A run that committed nothing, as of a transaction that came again, has no counts of its fact.
        is_idle = all(
            run.job == "commit" and run.counts and not any(map(run.counts.get, ("inserted", "updated", "deleted")))
            for run in commits
        )
        lines.append(f"  └─▶ index: no run has this fact{', which changed no row' if is_idle else ' yet'}")
    return "\n".join(lines)


def _shown(run: Run) -> str:
    what = f"{run.subject}, run {run.number:,}: {run.seconds:.1f} s"
    counts = ", ".join(f"{count:,} {name}" for name, count in run.counts.items() if count)
    details = " ".join(part for part in (run.decision, run.reason) if part)
    done = "; ".join(part for part in (details, counts) if part)
    if not run.error:
        return f"{what}{': ' if done else ''}{done}"
    indented = "\n".join(f"        {line}" for line in run.text.splitlines())
    return f"{what}: FAILED, {run.error}\n{indented}"
