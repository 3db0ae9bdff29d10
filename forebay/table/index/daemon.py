# SPDX-License-Identifier: Apache-2.0
"""`IndexDaemon`: flushes edits, catches up, retries, collects and watches, for the object types below a location.

Nothing depends on it for correctness, and several may run at once: each job commits by the put of a fact.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from os import PathLike
from random import Random
from threading import TIMEOUT_MAX
from typing import Final, Protocol

from forebay.clock import Clock, SystemClock
from forebay.errors import ConfigurationError, ForebayError, RetriableError, unwrap
from forebay.retry import RetryPolicy
from forebay.table.changelog.state.typed_values import is_text
from forebay.table.index.definition import ObjectType, refused
from forebay.table.index.edits import Edit, due
from forebay.table.index.flush import KeyHashes, flush
from forebay.table.index.follower import Follower, Launcher
from forebay.table.index.gc import collect
from forebay.table.index.log import Entry, StoppedError
from forebay.table.index.monitor import Ages, Alert, Alerts, Limits, Observed, Pending, Sink, alert_journal, log_alert
from forebay.table.index.pipelines import (
    IndexStore,
    IndexVersion,
    NoLogError,
    checked_storage,
    first_version,
    location_text,
    object_types,
    store_of,
)
from forebay.table.index.plan import waits_for
from forebay.table.index.replacement import run_replacement
from forebay.table.index.runs import Run, recorded, runs

_log = logging.getLogger(__name__)

RETRY: Final = RetryPolicy(first_pause=300.0, factor=2.0, max_pause=3600.0)
"""Pauses after passing faults."""

_SLICE: Final = 1.0
"""Seconds after which a waiting daemon looks whether it should stop."""


class CatchUp(Protocol):
    """Another database that follows the log, such as `OpenSearchIndex`."""

    @property
    def name(self) -> str:
        """Its name."""

    def catch_up(self) -> object:
        """Take what has changed."""


@dataclass
class _Retry:
    """When a job that failed may run again."""

    failures: int = 0
    due: float = 0.0
    blocked_at: object = None
    """The facts at which it failed for good; it may run at others."""


@dataclass(frozen=True)
class _Job:
    """A job of a round. `run` returns whether nothing is left to do.

    Args:
        subject: See `Run.subject`.
        facts: What it works on: after an error that lasts, it runs again only when they are others.
        run: Does it.
        aside: Whether it holds up no other job, however long it takes.
    """

    subject: str
    facts: object
    run: Callable[[], bool]
    aside: bool = False


class IndexDaemon:
    """Keeps the object types below a location up to date, and watches them.

    Each round, `step`, does for each object type: flush the edits of users if that is due, bring the index up to the
    log, then the other databases, go on with a replacement that was begun, collect what nothing needs, and apply the
    rules. A job that fails holds up no other one, nor does a replacement that takes long: it has a thread. After a
    passing fault a job is tried again in minutes, with pauses that grow; after one that lasts (`ConfigurationError`,
    `DataError` and the like) when there are new facts, a new definition or a new daemon.

    Args:
        location: The location of the funnels: a directory, or `s3://bucket/prefix`.
        object_types: Names of object types; none: all that are below the location, also new ones.
        storage: Settings of S3, as `stateStorage.*` of a stream.
        key_hashes: Hashes the keys of edits for a flush; `spark_key_hashes` does. None: edits are not flushed.
        launch: Runs the parts of a large step of an index; None: in this process.
        followers: Returns the other databases of an object type. Called once for each. If it fails, it is called in
            each round, and nothing is done for the object type until it returns them; nor is there an alert. In the
            first round, its `ConfigurationError` is raised.
        limits: When there are alerts.
        alerts: Get each alert: functions. Without any, alerts are written to the log.
        each_round: Gets the name of each object type and its breaches that are not over; `alert_metrics` makes one.
        every: Seconds between two rounds.
        gc_every: Seconds between two collections; None: none.
        retry: Pauses after passing faults.
        clock: The clock.
    """

    def __init__(  # noqa: PLR0913 - options
        self,
        location: str | PathLike[str],
        object_types: Sequence[str] = (),
        *,
        storage: Mapping[str, object] | None = None,
        key_hashes: KeyHashes | None = None,
        launch: Launcher | None = None,
        followers: Callable[[str], Sequence[CatchUp]] | None = None,
        limits: Limits | None = None,
        alerts: Sequence[Sink] = (log_alert,),
        each_round: Callable[[str, Sequence[Alert]], object] | None = None,
        every: float = 30.0,
        gc_every: float | None = 3600.0,
        retry: RetryPolicy = RETRY,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(object_types, str):
            object_types = (object_types,)
        if not isinstance(object_types, Sequence) or not all(isinstance(each, str) for each in object_types):
            raise refused("object_types", object_types, "give a list of names")
        for name, seconds in (("every", every), ("gc_every", 0.0 if gc_every is None else gc_every)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= TIMEOUT_MAX:
                raise refused(name, seconds, "give seconds, as 30.0")
        if followers is not None and not callable(followers):
            raise refused(
                "followers",
                followers,
                "give a function, as followers=lambda name: [OpenSearchIndex(location, name, url)]",
            )
        if not isinstance(alerts, Sequence) or not all(map(callable, alerts)):
            raise refused("alerts", alerts, "give a list of functions, as alerts=[page_me]")
        if each_round is not None and not callable(each_round):
            raise refused("each_round", each_round, "give a function, as alert_metrics()")
        if not isinstance(limits, Limits | None):
            raise refused("limits", limits, "give Limits, as limits=Limits(delay=300)")
        self.location = location_text(location)
        self.storage = checked_storage(storage)
        self.key_hashes = key_hashes
        self.launch = launch
        self.followers = followers or (lambda _: ())
        self.limits = limits or Limits()
        self.alerts = alerts or (log_alert,)
        self.each_round = each_round
        self.gc_every = gc_every
        self.retry = retry
        self.clock = clock or SystemClock()
        self.stopping = False
        """Whether `stop` was called."""
        self._every = every
        self._names = tuple(object_types)
        self._store = store_of(self.location, self.storage)
        self._types: dict[str, _TypeRounds] = {}
        self._found = False

    def step(self) -> bool:
        """Do a round; return whether all jobs are well. An error of a job is recorded, and not raised.

        Raises:
            ConfigurationError: In the first round: nothing is below the location, or nothing of a type that was named,
                or `followers` returns no databases.
            ForebayError: In the first round, if no types are named: the location cannot be listed.
        """
        return self._step(wait=True)

    def _step(self, *, wait: bool) -> bool:
        try:
            names = self._names or self._listed()
        except ForebayError as error:
            if not self._found:
                raise
            _log.error("the round failed, and the next one follows: %s", error)  # as if a mount were away
            return False
        well = True
        for name in names:
            if self.stopping:
                break
            well = self._step_of(name, wait=wait) and well
        self._found = True
        return well

    def _step_of(self, name: str, *, wait: bool) -> bool:
        """Do the round of one object type; return whether it is well. Its error holds up no other type."""
        try:
            if name not in self._types:
                if self._names:
                    IndexStore(self.location, name, self.storage).head()  # a name that is wrong is refused
                self._types[name] = _TypeRounds(self, name)
            return self._types[name].step(wait=wait)
        except Exception as error:  # also of a user's function that returns followers
            if not self._found and name not in self._types and isinstance(error, ConfigurationError):
                raise
            log = _log.error if isinstance(error, ForebayError) else _log.exception
            log("%s: the round failed, and the next one follows: %s", name, error)
            return False

    def _listed(self) -> list[str]:
        """Return the object types below the location, and forget those that are gone."""
        names = object_types(self._store)
        for name in self._types.keys() - set(names):
            self._types.pop(name).forget()
        if not names:
            raise ConfigurationError(
                f"no object type is below {self.location!r}",
                option="location",
                advice="commit a datasource first, or check the location",
            )
        return names

    def run(self, until: Callable[[], bool] | None = None, sleep: Callable[[float], None] = time.sleep) -> None:
        """Do rounds until `stop` is called.

        Args:
            until: Asked after each round; the daemon ends when it returns True. None: only `stop` ends it.
            sleep: Waits for seconds.

        Raises:
            ConfigurationError: See `step`.
        """
        while not self.stopping:
            begun = self.clock.monotonic()
            try:
                self._step(wait=False)
            except RetriableError as error:
                _log.error("the round failed, and the next one follows: %s", error)
            if until is not None and until():
                break
            while not self.stopping and (left := begun + self._every - self.clock.monotonic()) > 0:
                sleep(min(left, _SLICE))
        for each in self._types.values():
            each.finish()

    def stop(self) -> None:
        """Let `run` end after the job that goes on. For any thread, and for signal handlers."""
        self.stopping = True


class _TypeRounds:
    """The rounds of one object type."""

    def __init__(self, daemon: IndexDaemon, name: str) -> None:
        self._daemon, self._clock = daemon, daemon.clock
        self._index = IndexStore(daemon.location, name, daemon.storage)
        followers = daemon.followers(name)
        if not isinstance(followers, Sequence) or not all(
            hasattr(each, "catch_up") and is_text(getattr(each, "name", None)) for each in followers
        ):
            raise ConfigurationError(
                f"followers returned {followers!r:.100} for {name!r}",
                option="followers",
                advice="return a list of objects with a name and catch_up, as [OpenSearchIndex(location, name, url)]",
            )
        if len({each.name for each in followers}) < len(followers):
            raise ConfigurationError(
                f"two followers of {name!r} have one name: {', '.join(each.name for each in followers)}",
                option="followers",
                advice="give each a name of its own, as OpenSearchIndex(…, name='second')",
            )
        self._followers = tuple(followers)
        self._random = Random()
        self._collect_at = self._clock.monotonic()
        self._thread = ThreadPoolExecutor(1, f"forebay {name}")
        self._was_there = False
        self.begin()

    def begin(self) -> None:
        """Begin with what is there: at first, and when the object type was removed."""
        index, daemon = self._index, self._daemon
        self._aside: tuple[_Job, Future[bool], int] | None = None
        """The job in the thread, and the number of the last run before it."""
        self._alerts = Alerts(alert_journal(index), index.object_type, daemon.alerts, daemon.clock)
        self._retries: dict[str, _Retry] = {}
        self._first_serving = ""
        """The pipeline that served in the first round."""
        self._head = -1
        self._known_definition: tuple[str, ObjectType] | None = None
        self._edits: list[Edit] = []
        self._entries: dict[int, tuple[float | None, str]] = {}
        self._newest: dict[str, IndexVersion] = {}
        self._runs: dict[str, Run] = {}
        self._last_run = 0
        self._ages: dict[str, Ages] = {}

    def finish(self) -> None:
        """Wait for the replacement that is built."""
        self._thread.submit(int).result()

    def step(self, *, wait: bool) -> bool:
        """Do a round; return whether all jobs are well. Wait for the replacement that is built, or look at it."""
        head = self._index.log.head()
        if head is None:
            return self._is_gone()
        if head.number < self._head:
            self.begin()
        self._head, self._was_there = head.number, True
        self._first_serving = self._first_serving or head.serving
        well = self._runs_are_read()
        for job in self._jobs(head):
            if self._daemon.stopping:
                return well
            well = self._attempt(job, wait=wait) and well
        well = self._runs_are_read() and well
        observed = self._observed(self._index.log.head(head) or head)
        broken = self._alerts.update(observed, self._daemon.limits)
        self._each_round(broken)
        return well

    def _is_gone(self) -> bool:
        """Forget what was there, if there was something; return whether there never was."""
        if self._head >= 0:
            self.forget()
        if self._was_there:
            _log.error("%s: nothing is there any more", self._index.object_type)  # as if a mount were away
        return not self._was_there

    def forget(self) -> None:
        """Forget the object type, which is not there."""
        self.begin()
        self._each_round(())

    def _each_round(self, broken: Sequence[Alert]) -> None:
        try:
            if self._daemon.each_round is not None:
                self._daemon.each_round(self._index.object_type, broken)
        except Exception:  # noqa: BLE001 - of a user's function
            _log.exception("%s: each_round failed; the next round calls it again", self._index.object_type)

    def _jobs(self, head: Entry) -> Iterator[_Job]:
        """Yield the jobs of a round, each with the facts that the ones before have put.

        What is read here for a job, and cannot be, is an error of that job.
        """
        daemon = self._daemon
        try:
            flush_edits = partial(self._flush, self._pending_edits(head))
        except ForebayError as error:
            flush_edits = partial(_fail, error)
        last = self._edits[-1].offset if self._edits else 0
        yield _Job("flush edits", (head.number, head.serving, last), flush_edits)
        head = self._index.log.head(head) or head
        facts = (head.number, head.serving)
        yield _Job(f"index {head.serving}", facts, partial(self._follow, head))
        for follower in self._followers:
            yield _Job(f"opensearch {follower.name}", facts, partial(_catch_up, follower))
        try:
            # A daemon that stays builds it beside its rounds; the one round of `step` ends when it is done.
            for pipeline in self._watched(head)[1:]:
                todo = partial(self._replace, head, unserved=bool(self._unserved(pipeline, head)))
                yield _Job(f"replacement {pipeline}", facts, todo, aside=True)
        except ForebayError as error:
            if self._aside is None:
                yield _Job(f"replacement {head.pipelines[-1]}", facts, partial(_fail, error))
        if daemon.gc_every is not None and self._clock.monotonic() >= self._collect_at:
            yield _Job("gc", head.number, self._collect)

    def _attempt(self, job: _Job, *, wait: bool) -> bool:
        """Run a job, unless a failure says to wait; return whether it is well."""
        retry, now = self._retries.setdefault(job.subject, _Retry()), self._clock.monotonic()
        goes_on = job.aside and self._aside is not None
        if (
            not goes_on
            and retry.failures
            and (now < retry.due if retry.blocked_at is None else retry.blocked_at == job.facts)
        ):
            return False
        last = self._last_run
        try:
            if job.aside:
                if self._aside is None or (self._aside[0].subject != job.subject and self._aside[1].done()):
                    self._aside = job, self._thread.submit(job.run), last
                begun, future, last = self._aside
                if not wait and not future.done():
                    return not retry.failures
                self._aside, job = None, begun
                retry = self._retries.setdefault(begun.subject, _Retry())
                done = future.result()
            else:
                done = job.run()
        except StoppedError:  # another one serves since, or it was dropped
            return True
        except Exception as error:  # noqa: BLE001 - of any library; it is recorded, and shown
            typed = unwrap(error)
            # The round has read the log, so that it was away for a moment.
            passing = typed is None or isinstance(typed, RetriableError | NoLogError)
            # The pauses of passing faults do not go on where an error that lasted has ended.
            retry.failures = retry.failures + 1 if passing == (retry.blocked_at is None) else 1
            pause = self._daemon.retry.pause(retry.failures, self._random, typed)
            if not self._is_recorded(job.subject, last):
                self._record(job.subject, error)
            # What nobody knows of fails again after the pause, to be recorded then.
            waits = not passing and self._is_recorded(job.subject, last)
            retry.blocked_at, retry.due = job.facts if waits else None, self._clock.monotonic() + pause
            again = "again when there are new facts" if waits else f"again in {pause:,.0f} s"
            log = _log.exception if typed is None else _log.error
            log("%s: %s failed, %s: %s", self._index.object_type, job.subject, again, typed or error)
            return False
        retry.failures = 0
        self._note_well(job.subject, done=done)
        return True

    def _note_well(self, subject: str, *, done: bool) -> None:
        """Record that a job is well that failed before, if it has not recorded that itself, as it had nothing to do.

        Args:
            subject: The job.
            done: Whether nothing is left to do. Else it can read again what it needs.
        """
        name = subject.partition(" ")[2]
        for each in {subject, f"index {name}"}:
            failed = self._runs.get(each)
            # An index that is followed without an error has all, whatever is left to prove.
            if failed is None or not failed.error or (failed.begun and not done and each == subject):
                continue
            if self._runs_are_read() and self._runs[each].error:
                with recorded(self._index, failed.job, name, self._clock) as run:
                    run.did(since=failed.to, to=self._head)

    def _is_recorded(self, subject: str, last: int) -> bool:
        """Return whether a failure of a job is in the list of runs after a number."""
        names = (subject, f"index {subject.partition(' ')[2]}")
        with suppress(ForebayError):
            return any(run.error and run.subject in names for run in runs(self._index, last))
        return False

    def _record(self, subject: str, error: Exception) -> None:
        """Record that a job failed before it began."""
        job, _, name = subject.partition(" ")
        with suppress(Exception), recorded(self._index, job, name, self._clock) as run:
            run.did(since=self._head - 1, to=self._head, begun=False)
            raise error

    def _flush(self, edits: Sequence[Edit]) -> bool:
        oldest = self._age("edits", {edit.offset: edit.time / 1e6 for edit in edits})
        if oldest is None:
            return True
        at = edits[0].time + int(oldest.seconds * 1e6)
        if due(edits, at) is None or self._daemon.key_hashes is None:
            return False
        flush(self._index, self._daemon.key_hashes)
        return True

    def _follow(self, head: Entry) -> bool:
        if self._unserved(head.serving, head):
            self._follower(head.serving).follow()
        return True

    def _follower(self, pipeline: str) -> Follower:
        return Follower(self._index, pipeline, launch=self._daemon.launch)

    def _replace(self, head: Entry, *, unserved: bool) -> bool:
        """Go on with the replacement. In its thread: it reads nothing that a round changes."""
        assert head.building is not None  # noqa: S101 - see `_watched`
        if head.building.swap:
            run_replacement(self._index, head, self._follower)
        elif unserved:
            self._follower(head.building.pipeline).follow()
        return head.building.swap  # else a proof that failed is not done again

    def _collect(self) -> bool:
        with recorded(self._index, "gc", "", self._clock) as run:
            head = self._index.head().number
            run.did(since=head)
            garbage = collect(self._index)
            if garbage.facts or garbage.files:
                run.did(to=head, counts={"facts": len(garbage.facts), "files": len(garbage.files)})
        self._collect_at = self._clock.monotonic() + (self._daemon.gc_every or 0.0)
        return True

    def _watched(self, head: Entry) -> list[str]:
        """Return the pipelines that are kept up to date and watched: not a replacement that waits for a commit."""
        if head.building is None:
            return [head.serving]
        waits = any(waits_for(head, *(self._definition(each, head) for each in head.pipelines)))
        return [head.serving] if waits else [*head.pipelines]

    def _observed(self, head: Entry) -> Observed:
        unknown: set[str] = set()
        pipelines: dict[str, Pending | None] = {}
        edits, watched = None, list(head.pipelines)
        with _unless_unreadable(unknown, *watched[1:]):
            watched = self._watched(head)
        for each in (name for name in watched if name not in unknown):
            with _unless_unreadable(unknown, each):
                # How long a replacement that waited could have been built already, no fact says, also when it serves.
                pipelines[each] = self._age(each, self._unserved(each, head), new=each == self._first_serving)
        datasources = None
        with suppress(ForebayError):
            definitions = [self._definition(each, head) for each in head.pipelines]
            datasources = {source.name for each in definitions for source in each.datasources}
        with _unless_unreadable(unknown, "edits"):
            edits = self._age("edits", {edit.offset: edit.time / 1e6 for edit in self._pending_edits(head)})
        self._ages = {name: ages for name, ages in self._ages.items() if name in (*watched, "edits")}
        self._newest = {name: version for name, version in self._newest.items() if name in watched}
        return Observed(pipelines, edits, self._runs, "".join(watched[1:]), unknown, datasources)

    def _definition(self, pipeline: str, head: Entry) -> ObjectType:
        if head.building is not None and pipeline == head.building.pipeline:
            return ObjectType.from_facts(head.building.definition)
        if self._known_definition is None or self._known_definition[0] != pipeline:
            self._known_definition = pipeline, self._index.definition(pipeline)
        return self._known_definition[1]

    def _age(self, name: str, times: Mapping[int, float], *, new: bool = True) -> Pending | None:
        return self._ages.setdefault(name, Ages(self._clock, new=new)).oldest(times)

    def _unserved(self, pipeline: str, head: Entry) -> dict[int, float]:
        """Return the facts with changes that the index of a pipeline does not have, and when they were put."""
        newest = self._index.newest_version(pipeline, self._newest.get(pipeline))
        unserved = {}
        building = head.building
        if building is not None and pipeline == building.pipeline and (newest is None or newest.number == 0):
            newest = first_version(building)
            begun = self._index.log.get(building.since)  # it has nothing of what was committed before it
            unserved[building.since] = self._clock.now() if begun is None else _time_of(begun)
        if newest is None:
            self._index.definition(pipeline)  # an error if the files are gone
            return {}
        self._newest[pipeline] = newest
        definition = self._definition(pipeline, head)
        for number in range(max(newest.data, 0) + 1, head.number + 1):
            if number not in self._entries:
                entry = head if number == head.number else self._index.log.get(number)
                self._entries[number] = self._put_at(entry)
            at, datasource = self._entries[number]
            if at is not None and (not datasource or definition.feeds(datasource)):
                unserved[number] = at
        served = min(version.data for version in self._newest.values())
        self._entries = {number: put for number, put in self._entries.items() if number > served}
        return unserved

    def _put_at(self, entry: Entry | None) -> tuple[float | None, str]:
        """Return when a fact was put, and to which datasource. None: it changed nothing; now: it was collected."""
        if entry is None:
            return self._clock.now(), ""
        return _time_of(entry) if entry.changes_objects else None, "" if entry.kind == "flush" else entry.datasource

    def _pending_edits(self, head: Entry) -> list[Edit]:
        """Return the edits that no flush has folded. Those that are known are not read again."""
        folded = head.edits.offset
        self._edits = [edit for edit in self._edits if edit.offset > folded]
        self._edits += self._index.edits.after(max(folded, *(edit.offset for edit in self._edits), 0))
        return self._edits

    def _runs_are_read(self) -> bool:
        """Read the runs that are new; return whether they could be read: nothing but a rule needs them."""
        try:
            for run in runs(self._index, self._last_run):
                self._runs[run.subject] = run
                self._last_run = run.number
        except ForebayError as error:
            _log.error("%s: the runs cannot be read: %s", self._index.object_type, error)
            return False
        return True


def _time_of(entry: Entry) -> float:
    return datetime.fromisoformat(entry.time).timestamp()


@contextmanager
def _unless_unreadable(unknown: set[str], *names: str) -> Iterator[None]:
    """Note in `unknown` what could not be read. The job that needs it fails, which is an alert."""
    try:
        yield
    except ForebayError:
        unknown.update(names)


def _fail(error: ForebayError) -> bool:
    raise error


def _catch_up(follower: CatchUp) -> bool:
    follower.catch_up()
    return True
