# SPDX-License-Identifier: Apache-2.0
"""Watches the index of an object type: rules, and alerts once at a breach and once at its end.

The rules are pure functions of facts and ages. Alerts are facts `alerts/<n>.json`, so a restart repeats none, and of
two daemons one puts each. An alert is put, then sent, then marked: if a process dies in between, the next one sends it.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

from forebay.clock import Clock
from forebay.table.changelog.state.facts import FORMAT, fact_bytes
from forebay.table.index.definition import refused
from forebay.table.index.facts import Seconds
from forebay.table.index.runs import KEPT, Journal, Run

if TYPE_CHECKING:
    from forebay.table.index.pipelines import IndexStore

_log = logging.getLogger(__name__)

_PATIENCE: Final = 60.0
"""Seconds after which a daemon sends an alert that another one has put, and not sent."""

_SENT: Final = "-sent.json"

Rule = Literal["failed", "duration", "delay", "edits"]

NOTHING: Final = sys.maxsize
"""What a finding is about if nothing is pending: later than any fact."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When there is an alert. Give all daemons of a location the same limits.

    Args:
        failed: Whether there is one if the last run of a job failed.
        duration: Seconds that a run may take; None: any.
        delay: Seconds from a commit until a version serves it; None: any.
        edits: Seconds that an edit of a user may be pending; None: any.

    Raises:
        ConfigurationError: A limit is not more than 0.
    """

    failed: bool = True
    duration: float | None = 3600.0
    delay: float | None = 600.0
    edits: float | None = 7 * 3600.0

    def __post_init__(self) -> None:
        for name in ("duration", "delay", "edits"):
            limit = getattr(self, name)
            if limit is not None and not (isinstance(limit, int | float) and limit > 0):
                raise refused(name, limit, "give seconds, more than 0", what="the limit")

    def watches(self, rule: Rule) -> bool:
        """Return whether a rule is on."""
        return bool(self.failed) if rule == "failed" else getattr(self, rule) is not None


@dataclass(frozen=True)
class Alert:
    """A breach of a rule, or its end.

    Args:
        object_type: The object type.
        rule: The rule.
        subject: What breaks it: `commit orders`, `index 000001`, `users`.
        breach: True: it begins; False: it is over.
        text: What happened, as people read it.
        about: The number of the run, the fact or the edit that the breach is about.
        time: When, in seconds since 1970.
        number: Its number.
    """

    object_type: str
    rule: Rule
    subject: str
    breach: bool
    text: str
    about: int = 0
    time: Seconds = 0.0
    number: int = 0

    @property
    def at(self) -> str:
        """When, in UTC, as people write it."""
        return datetime.fromtimestamp(self.time, UTC).strftime("%Y-%m-%d %H:%M:%S")

    def __str__(self) -> str:
        return (
            f"{self.object_type}: {'ALERT' if self.breach else 'recovered'}: {self.rule} of {self.subject}: {self.text}"
        )


Sink = Callable[[Alert], object]
"""Gets each alert. If it raises, it gets the alert again in the next round."""


def log_alert(alert: Alert) -> None:
    """Write an alert to the log: a breach as an error, its end as a warning."""
    _log.log(logging.ERROR if alert.breach else logging.WARNING, "%s", alert)


@dataclass(frozen=True)
class Pending:
    """The oldest thing that waits: its number, and for how many seconds it has."""

    number: int
    seconds: float


@dataclass(frozen=True)
class Observed:
    """What the rules judge.

    Args:
        pipelines: For each watched pipeline, the oldest fact of the log with changes that its index does not serve.
        edits: The oldest edit that no flush has folded.
        runs: The last run of each job, by its subject.
        building: The pipeline of the replacement that is built; empty: none is, or it waits for a commit, if that could
            be read.
        unknown: The pipelines of which nothing could be read, and `edits`, if those could not. Their alerts stay.
        datasources: The datasources of the index and of the replacement; None: they could not be read, nor whether
            the replacement waits.
    """

    pipelines: Mapping[str, Pending | None] = field(default_factory=dict)
    edits: Pending | None = None
    runs: Mapping[str, Run] = field(default_factory=dict)
    building: str = ""
    unknown: Collection[str] = ()
    datasources: Collection[str] | None = None

    def has(self, subject: str) -> bool:
        """Return whether a job is watched: those of a pipeline or a datasource that is gone are not."""
        job, _, name = subject.partition(" ")
        if job == "replacement":
            return name == self.building
        if job == "commit":
            return self.datasources is None or name in self.datasources
        return job != "index" or name in (*self.pipelines, *self.unknown)

    def may_be_gone(self, subject: str) -> bool:
        """Return whether nobody can tell whether a job is watched: it keeps its alert, and begins none."""
        job, _, name = subject.partition(" ")
        of_replacement = job in ("index", "replacement") and name == self.building
        return self.datasources is None and (job == "commit" or of_replacement)


@dataclass(frozen=True)
class RuleOutcome:
    """The outcome of a rule: what is breached, or nothing. See `Alert`."""

    rule: Rule
    subject: str
    about: int
    breach: str | None = None


def outcomes(observed: Observed, limits: Limits) -> list[RuleOutcome]:
    """Apply the rules."""
    results = []
    for run in observed.runs.values():
        if not observed.has(run.subject) or observed.may_be_gone(run.subject):
            continue
        lines = "; ".join(" ".join(line.split()) for line in run.text.splitlines())
        failed = f"run {run.number}: {run.error}: {lines}" if run.error else None
        results.append(RuleOutcome("failed", run.subject, run.number, failed))
        results.append(RuleOutcome("duration", run.subject, run.number, _over(run.seconds, limits.duration, "it took")))
    for pipeline, oldest in observed.pipelines.items():
        results.append(_waiting("delay", f"index {pipeline}", oldest, limits.delay, "fact {} of the log waits"))
    if "edits" not in observed.unknown:
        results.append(_waiting("edits", "users", observed.edits, limits.edits, "edit {} is pending"))
    return [each for each in results if limits.watches(each.rule)]


def changes(open_alerts: Iterable[Alert], observed: Observed, limits: Limits, object_type: str) -> list[Alert]:
    """Return the alerts that begin or end what is open.

    A breach is over when what it is about is over: a later run is well, the fact is served, the edit is folded. So an
    age that is measured anew, after a restart or with another clock, ends none.
    """
    known = {(alert.rule, alert.subject): alert for alert in open_alerts}
    made = []
    for each in outcomes(observed, limits):
        alert = known.get((each.rule, each.subject))
        if alert is None and each.breach is not None:
            made.append(Alert(object_type, each.rule, each.subject, breach=True, text=each.breach, about=each.about))
        elif alert is not None and each.breach is None and each.about > alert.about:
            made.append(replace(alert, breach=False, text="it is as it should be", about=each.about))
    made += [
        replace(alert, breach=False, text="it is not watched any more")
        for alert in known.values()
        if not limits.watches(alert.rule) or not observed.has(alert.subject)
    ]
    return made


def _waiting(rule: Rule, subject: str, oldest: Pending | None, limit: float | None, what: str) -> RuleOutcome:
    if oldest is None:
        return RuleOutcome(rule, subject, NOTHING)
    return RuleOutcome(rule, subject, oldest.number, _over(oldest.seconds, limit, what.format(oldest.number)))


def _over(seconds: float, limit: float | None, what: str) -> str | None:
    return f"{what} {seconds:,.0f} s, more than {limit:,.0f} s" if limit is not None and seconds > limit else None


class Ages:
    """How long things have been pending, by a clock that nobody sets.

    What a new process finds has the age that its time says. What comes later is as old as the round that saw it first.

    Args:
        clock: The clock.
        new: Whether the process is new.
    """

    def __init__(self, clock: Clock, *, new: bool = True) -> None:
        self._clock = clock
        self._began: dict[int, float] | None = None if new else {}

    def oldest(self, times: Mapping[int, float]) -> Pending | None:
        """Return what has the lowest number.

        Args:
            times: When each thing began that is pending now, in seconds since 1970, by its number.
        """
        now, wall = self._clock.monotonic(), self._clock.now()
        if self._began is None:
            self._began = {number: now - max(0.0, wall - began) for number, began in times.items()}
        self._began = {number: self._began.get(number, now) for number in times}
        first = min(times, default=None)
        return None if first is None else Pending(first, now - self._began[first])


class Alerts:
    """The alerts of an object type: puts each once, and sends it to all sinks.

    Args:
        journal: Where they are kept.
        object_type: The object type.
        sinks: Get them.
        clock: The clock, for the times that people read.
    """

    def __init__(self, journal: Journal, object_type: str, sinks: Sequence[Sink], clock: Clock) -> None:
        self._journal = journal
        self._object_type = object_type
        self._sinks = sinks
        self._clock = clock
        self._known: dict[int, Alert] = {}
        self._last = 0
        self._sending: threading.Thread | None = None
        self._own_numbers: set[int] = set()
        self._waiting: dict[int, float] | None = None

    def update(self, observed: Observed, limits: Limits) -> list[Alert]:
        """Put the alerts that are new, and send those that nobody has sent; return the breaches that are not over."""
        self._read()
        while made := changes(open_of(self._known.values()), observed, limits, self._object_type):
            number = self._last + 1
            alert = replace(made[0], time=self._clock.now(), number=number)
            if self._journal.put(number, alert):
                self._known[number] = alert
                self._last = number
                self._own_numbers.add(number)
            else:
                self._read()
        self._deliver()
        return open_of(self._known.values())

    def _deliver(self) -> None:
        """Send in a thread: a function that does not return holds up one round, and no job after it."""
        if self._sending is not None and self._sending.is_alive():
            return
        failures: list[BaseException] = []

        def send() -> None:
            try:
                self._send()
            except BaseException as error:  # noqa: BLE001 - raised below
                failures.append(error)

        self._sending = threading.Thread(target=send, daemon=True)
        self._sending.start()
        self._sending.join(_PATIENCE)
        if failures:
            raise failures[0]
        if self._sending.is_alive():
            _log.error("%s: an alert function does not return; rounds go on without alerts", self._object_type)

    def _read(self) -> None:
        numbers = self._journal.numbers()
        self._last = max(numbers, default=0)
        self._known = {number: self._known[number] for number in numbers if number in self._known}
        for number in numbers:  # what is read stays, if a later read fails
            if number not in self._known and (alert := self._journal.get(Alert, number)) is not None:
                self._known[number] = alert

    def _send(self) -> None:
        sent, now = set(self._journal.store.names(self._journal.prefix)), self._clock.monotonic()
        unsent = [number for number in sorted(self._known) if sent_name(self._journal, number) not in sent]
        # A new process sends what one that died has left. Later, another daemon may be sending what it has just put.
        new = now - _PATIENCE if self._waiting is None else now
        self._waiting = {number: (self._waiting or {}).get(number, new) for number in unsent}
        for number in unsent:
            if number not in self._own_numbers and now - self._waiting[number] < _PATIENCE:
                continue
            try:
                for sink in self._sinks:
                    sink(self._known[number])
            except Exception:  # noqa: BLE001 - of a user's function
                _log.exception("the alert is sent again in the next round: %s", self._known[number])
            else:
                self._journal.store.put_if_absent(sent_name(self._journal, number), fact_bytes({"v": FORMAT}))


def open_of(alerts: Iterable[Alert]) -> list[Alert]:
    """Return the breaches that are not over."""
    last = {(alert.rule, alert.subject): alert for alert in sorted(alerts, key=lambda alert: alert.number)}
    return [alert for alert in last.values() if alert.breach]


def sent_name(journal: Journal, number: int) -> str:
    """Return the name of the mark of an alert that was sent."""
    return f"{journal.prefix}{number:012d}{_SENT}"


def alert_journal(index: IndexStore) -> Journal:
    """Return the journal of the alerts of an object type."""
    return Journal(index.store, f"{index.directory}alerts/")


def alerts(index: IndexStore) -> list[Alert]:
    """Return the alerts that there are, oldest first."""
    return alert_journal(index).records(Alert)


def old_alerts(index: IndexStore) -> list[str]:
    """Return the names of facts that may go: all before the last `KEPT` alerts, and before the first that is open."""
    journal = alert_journal(index)
    numbers = journal.numbers()
    if len(numbers) <= KEPT:
        return []
    first = min([numbers[-KEPT], *(alert.number for alert in open_of(alerts(index)))])
    marks = [name for name in index.store.names(journal.prefix) if name.endswith(_SENT)]
    # The mark goes after its alert, which would be sent again.
    return [journal.name(number) for number in numbers if number < first] + [
        name for name in marks if name < sent_name(journal, first)
    ]
