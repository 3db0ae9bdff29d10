# SPDX-License-Identifier: Apache-2.0
"""Rules and alerts: a table of cases, and random histories against a plain model that says when each alert comes."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pytest

from forebay.errors import ConfigurationError, RetriableError
from forebay.table.index import monitor
from forebay.table.index.monitor import NOTHING, Ages, Alert, Alerts, Limits, Observed, Pending, changes, outcomes
from forebay.table.index.runs import Journal, Run

LIMITS = Limits(duration=100, delay=60, edits=600)
OK, BAD = Run("index", "live", seconds=5, number=4), Run("index", "live", error="DataError", text="x", number=4)


class Memory:
    """A store in memory."""

    def __init__(self):
        self.facts = {}

    def get(self, name):
        return self.facts.get(name)

    def put_if_absent(self, name, data):
        return self.facts.setdefault(name, data) is data

    def names(self, prefix):
        return sorted(name for name in self.facts if name.startswith(prefix))


class Clocks:
    """A clock that people set: `wall` jumps, `passed` does not."""

    def __init__(self):
        self.passed, self.offset = 0.0, 1_700_000_000.0

    def now(self):
        return self.passed + self.offset

    def monotonic(self):
        return self.passed


def seen(delay=None, edits=None, **runs):
    return Observed({"live": delay}, edits, {run.subject: run for run in runs.values()}, datasources={"a", "b"})


@pytest.mark.parametrize(
    ("observed", "broken"),
    [
        (seen(), {}),
        (seen(run=OK), {}),
        (seen(run=BAD), {"failed of index live": "run 4: DataError: x"}),
        (seen(run=replace(OK, seconds=100)), {}),
        (seen(run=replace(OK, seconds=100.1)), {"duration of index live": "it took 100 s, more than 100 s"}),
        (seen(delay=Pending(7, 60)), {}),
        (seen(delay=Pending(7, 61)), {"delay of index live": "fact 7 of the log waits 61 s, more than 60 s"}),
        (seen(edits=Pending(3, 600)), {}),
        (seen(edits=Pending(3, 7200)), {"edits of users": "edit 3 is pending 7,200 s, more than 600 s"}),
        (seen(run=replace(BAD, name="old")), {}),  # a pipeline that is not watched any more
        (seen(run=replace(BAD, job="commit", name="a")), {"failed of commit a": "run 4: DataError: x"}),
    ],
)
def test_rules(observed, broken):
    found = outcomes(observed, LIMITS)
    assert {f"{each.rule} of {each.subject}": each.breach for each in found if each.breach is not None} == broken
    off = Limits(failed=False, duration=None, delay=None, edits=None)
    assert outcomes(observed, off) == []


BREACH = Alert("O", "delay", "index live", breach=True, text="t", about=7)


@pytest.mark.parametrize(
    ("before", "observed", "limits", "expected"),
    [
        ([], seen(delay=Pending(7, 61)), LIMITS, [True]),
        ([BREACH], seen(delay=Pending(7, 99)), LIMITS, []),
        ([BREACH], seen(delay=Pending(7, 1)), LIMITS, []),  # the same fact waits, whatever a new clock says
        ([BREACH], seen(delay=Pending(8, 1)), LIMITS, [False]),
        ([BREACH], seen(delay=Pending(8, 61)), LIMITS, []),
        ([BREACH], seen(), LIMITS, [False]),
        ([BREACH], seen(delay=Pending(7, 99)), replace(LIMITS, delay=None), [False]),
        ([BREACH], Observed({"new": None}), LIMITS, [False]),
        ([replace(BREACH, rule="failed", about=4)], seen(run=replace(OK, number=5)), LIMITS, [False]),
        ([replace(BREACH, rule="failed", about=4)], seen(run=replace(BAD, number=5)), LIMITS, []),
        ([replace(BREACH, rule="failed", about=4)], seen(), LIMITS, []),  # its runs were collected
    ],
)
def test_an_alert_comes_at_a_breach_and_at_its_end(before, observed, limits, expected):
    assert [alert.breach for alert in changes(before, observed, limits, "O")] == expected


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_that_is_no_duration_is_refused(limit):
    with pytest.raises(ConfigurationError, match="option: delay"):
        Limits(delay=limit)


def test_alerts_are_read_at_last_from_a_store_that_fails_now_and_then():
    store, clock, got = Memory(), Clocks(), []
    writer = Alerts(Journal(store, "alerts/"), "O", [], clock)
    for number in range(60):
        writer.update(seen(run=replace(OK if number % 2 else BAD, number=number)), LIMITS)

    class Failing(Memory):
        reads = 0

        def get(self, name):
            self.reads += 1
            if self.reads % 20 == 0:
                raise RetriableError("the store does not answer")
            return self.facts.get(name)

    failing = Failing()
    failing.facts = store.facts
    reader = Alerts(Journal(failing, "alerts/"), "O", [got.append], clock)
    for _ in range(10):
        with suppress(RetriableError):
            reader.update(seen(run=replace(BAD, number=60)), LIMITS)
            break
    assert [(alert.number, alert.breach) for alert in got] == [(61, True)]


class History:
    """A random history of facts, edits, runs, faults, restarts and clocks, and what a plain model expects of it."""

    def __init__(self, seed):
        self.random, self.clock, self.store = random.Random(seed), Clocks(), Memory()
        self.facts, self.edits = {}, {}  # what waits: number -> [time by the wall, when a round of this process saw it]
        self.last = {"fact": 0, "edit": 0, "run": 0}
        self.runs = {}
        self.open, self.got, self.expected = {}, [], []
        self.again, self.dies, self.fresh, self.steps = [], False, True, 0
        self.restart()

    def restart(self):
        self.alerts = Alerts(Journal(self.store, "alerts/"), "O", [self.sink], self.clock)
        self.ages = Ages(self.clock), Ages(self.clock)
        self.fresh = True

    def sink(self, alert):
        self.got.append((alert.rule, alert.subject, alert.breach))
        if self.dies:
            self.dies = False
            raise KeyboardInterrupt

    def play(self, steps):
        doings = [self.time, self.time, self.jump, self.commit, self.serve, self.edit, self.flush, self.job, self.job]
        for _ in range(steps):
            self.random.choice([*doings, self.round, self.round, self.round, self.crash, self.restart])()

    def time(self):
        self.clock.passed += self.random.choice([1, 30, 45, 500])

    def jump(self):
        self.clock.offset += self.random.choice([-86_400, 86_400])

    def commit(self):
        self.last["fact"] += 1
        self.facts[self.last["fact"]] = [self.clock.now(), None]

    def edit(self):
        self.last["edit"] += 1
        self.edits[self.last["edit"]] = [self.clock.now(), None]

    def serve(self):
        self.facts = {number: each for number, each in self.facts.items() if number > self.last["fact"] - 1}
        if self.random.random() < 0.6:
            self.facts = {}

    def flush(self):
        self.edits = {}

    def job(self):
        self.last["run"] += 1
        job, name = self.random.choice([("index", "live"), ("commit", "a"), ("commit", "b")])
        error = self.random.choice(["", "", "DataError"])
        run = Run(job, name, seconds=self.random.choice([1, 99, 101]), error=error, number=self.last["run"])
        self.runs[run.subject] = run

    def observed(self):
        pending = [
            ages.oldest({number: wall for number, (wall, _) in waiting.items()})
            for ages, waiting in zip(self.ages, (self.facts, self.edits), strict=True)
        ]
        return Observed({"live": pending[0]}, pending[1], dict(self.runs), datasources={"a", "b"})

    def round(self):
        expected = self.model()
        begin = len(self.got)
        self.alerts.update(self.observed(), LIMITS)
        assert sorted(self.got[begin:]) == sorted(self.again + expected), self.steps
        self.again = []

    def crash(self):
        """The process dies while it sends the first alert of a round: before it is marked, and before the others."""
        expected = self.model()
        begin, self.dies = len(self.got), True
        try:
            self.alerts.update(self.observed(), LIMITS)
        except KeyboardInterrupt:
            (first,) = self.got[begin:]
            assert first in self.again + expected
            self.again = self.again + expected  # the next process sends it again, and the others
        else:
            assert self.got[begin:] == self.again + expected == []
        self.dies = False
        self.restart()

    def model(self):
        """What must come in a round now: in the words of the documentation, without numbers of alerts."""
        self.steps += 1
        now, states = self.clock.passed, {}
        for rule, subject, waiting, limit in (
            ("delay", "index live", self.facts, 60),
            ("edits", "users", self.edits, 600),
        ):
            for each in waiting.values():
                if self.fresh:
                    each[1] = now - max(0.0, self.clock.now() - each[0])
                elif each[1] is None:
                    each[1] = now
            oldest = min(waiting, default=None)
            broken = oldest is not None and now - waiting[oldest][1] > limit
            states[rule, subject] = (NOTHING if oldest is None else oldest, broken)
        self.fresh = False
        for subject, run in self.runs.items():
            states["failed", subject] = (run.number, bool(run.error))
            states["duration", subject] = (run.number, run.seconds > 100)
        expected = []
        for key, (about, broken) in states.items():
            if broken and key not in self.open:
                self.open[key] = about
                expected.append((*key, True))
            elif key in self.open and not broken and about > self.open[key]:
                del self.open[key]
                expected.append((*key, False))
        return expected


def search(seeds):
    raised = 0
    for seed in seeds:
        history = History(seed)
        history.play(60)
        raised += len(history.got)
    return raised


def test_random_histories_raise_each_alert_once():
    assert search(range(60)) > 300


@pytest.mark.soak
def test_many_random_histories_raise_each_alert_once():
    assert search(range(10_000)) > 50_000


def by_wall(ages, times):
    first = min(times, default=None)
    return None if first is None else Pending(first, max(0.0, ages._clock.now() - times[first]))


def by_age(opened, observed, limits, name):
    return changes([replace(each, about=-1) for each in opened], observed, limits, name)


def forgetful(self, seen, limits):
    """Alerts that a restart forgets: the state is in the process alone."""
    self._known = getattr(self, "_own", {})
    changed = changes(monitor.open_of(self._known.values()), seen, limits, "O")
    for alert in changed:
        self._own = self._known = {**self._known, len(self._known): replace(alert, number=len(self._known))}
        for sink in self._sinks:
            sink(alert)


@pytest.mark.parametrize(
    ("place", "name", "wrong"),
    [
        (Ages, "oldest", by_wall),
        (Alerts, "update", forgetful),
        (monitor, "sent_name", lambda journal, number: f"{journal.prefix}{number}-{random.random()}"),
        (monitor, "changes", lambda *given: [each for each in changes(*given) if each.breach]),
        (monitor, "changes", by_age),
    ],
    ids=["ages by the wall clock", "alerts in the process", "no mark", "no recovery", "over when a new clock says so"],
)
def test_the_search_catches(monkeypatch, place, name, wrong):
    monkeypatch.setattr(place, name, wrong)
    with pytest.raises(AssertionError):
        search(range(60))
