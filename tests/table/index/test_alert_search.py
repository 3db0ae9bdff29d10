# SPDX-License-Identifier: Apache-2.0
"""Random histories of an object type and its daemons: each alert comes and ends as docs/indexing.md says.

Commits, edits, replacements, faults, unreadable directories, clocks that jump, restarts, `--once`, types that are made
anew. The model has the facts of the log, when each daemon could first see them, and which rows fit which definition.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest
from daemon_histories import ACTIONS, HOUR, LIMITS, Clocks, History

from forebay.errors import RetriableError
from forebay.state.state_store import RetryingStateStore
from forebay.table.index import daemon as daemon_module
from forebay.table.index import edits, monitor, object_set, transactions
from forebay.table.index import replacement as replacement_module
from forebay.table.index.monitor import Pending, alerts
from forebay.table.index.plan import waits_for
from forebay.table.index.runs import recorded, runs
from forebay.table.index.verify import verify


class Violation(Exception):
    """What is not as docs/indexing.md says."""


class Search(History):
    """A history, and what the rules say of it."""

    def begin(self):
        self.breaches: dict[tuple[str, str], monitor.Alert] = {}
        self.seen = 0
        super().begin()

    def remove(self):
        """Remove the object type and make it anew. The daemons see that it is gone, or that its log is shorter."""
        self.closed.clear()
        sees = self.draw.random() < 0.5 or any(watcher.head <= 2 for watcher in self.watchers)
        shutil.rmtree(Path(self.objects.location, "O"))
        for watcher in self.watchers:
            if sees and watcher.serving and watcher.daemon.step():
                raise Violation("a round is well though nothing is there")
        self.begin()
        for watcher in self.watchers:
            watcher.begin()
            self.step(watcher)

    def round(self):
        if self.once or self.draw.random() < 0.15:
            self.restart()
        self.clock.passed += 30
        self.step(self.draw.choice(self.watchers))

    # What the rules say.

    def step(self, watcher):
        self.counts["rounds"] += 1
        with self.all_open():
            serving, is_first = self.index.head().serving, not watcher.serving
        well = watcher.daemon.step()
        can_read, closed = not self.closed, [*self.closed]
        with self.all_open():
            self.head = self.index.head()
            watcher.head = self.head.number
            self._facts_are_seen(watcher, serving, can_read)
            for alert in alerts(self.index):
                if alert.number > self.seen:
                    self._judge(alert, watcher)
            if can_read:
                self._judge_round(watcher)
            elif is_first:
                self._judge_unreadable(serving, closed)
        return well

    @property
    def watched(self):
        """The pipelines that are watched: not a replacement that waits for a commit."""
        serving, *building = ((name, self.defined[name].definition) for name in self.head.pipelines)
        return [serving[0], *(name for name, new in building if not any(waits_for(self.head, serving[1], new)))]

    def is_watched(self, subject):
        job, _, name = subject.partition(" ")
        sources = {source.name for each in self.head.pipelines for source in self.defined[each].definition.datasources}
        known = {"index": self.watched, "replacement": self.watched[1:], "commit": sources}
        return name in known.get(job, [name])

    def pending(self, what):
        """When each fact was put that a pipeline does not serve, or each edit that is pending, by its number."""
        if what == "edits":
            return {edit.offset: edit.time / 1e6 for edit in self.index.edits.after(self.head.edits.offset)}
        version, building = self.index.newest_version(what), self.head.building
        first = version.data + 1 if version else 0
        begun = building.since if building and what == building.pipeline and (not version or not version.number) else -1
        feeds = self.defined[what].definition.feeds
        return {
            number: datetime.fromisoformat(entry.time).timestamp()
            for number in range(max(first, 0) if begun < 0 else begun, self.head.number + 1)
            if (entry := self.index.log.get(number)) and entry.kind != "begin"
            if entry.kind == "flush" or number == begun or (entry.kind == "transaction" and feeds(entry.datasource))
        }

    def _facts_are_seen(self, watcher, serving, can_read):
        now, is_first = self.clock.passed, not watcher.serving
        watcher.serving = watcher.serving or serving
        pending = {(what, number): at for what in (*self.watched, "edits") for number, at in self.pending(what).items()}
        for key, at in pending.items():
            told = now - (max(0.0, self.clock.now() - at) if key[0] in (watcher.serving, "edits") else 0.0)
            began = told if watcher.believes else now
            if watcher.believes or key not in watcher.earliest:
                watcher.earliest[key] = min(watcher.earliest.get(key, math.inf), began)
            if can_read:
                watcher.latest.setdefault(key, told if is_first else now)
        watcher.latest = {key: began for key, began in watcher.latest.items() if key in pending}
        watcher.believes = watcher.believes and not can_read

    def _judge(self, alert, watcher):
        """Judge an alert that has come: its breach or its end is true."""
        self.seen, key = alert.number, (alert.rule, alert.subject)
        self.counts[f"{alert.rule} {alert.breach}"] += 1
        self.trace.append(f"{alert.number} {alert.about} {alert}")
        name = alert.subject.partition(" ")[2] if alert.rule == "delay" else "edits"
        listed = [run for run in runs(self.index) if run.subject == alert.subject]
        before = self.breaches.pop(key, None)
        if alert.breach is (before is not None):
            raise Violation(f"it comes twice: {alert}")
        if before is None:
            self.breaches[key] = alert
            if not self.is_watched(alert.subject):
                raise Violation(f"it is not watched: {alert}")
            if alert.rule in ("failed", "duration"):
                true = any(run.number == alert.about and is_broken(alert.rule, run) for run in listed)
            else:
                age = self.clock.passed - watcher.earliest.get((name, alert.about), math.inf)
                true = alert.about in self.pending(name) and age > getattr(LIMITS, alert.rule)
        elif alert.rule in ("failed", "duration"):
            true = any(run.number > before.about and not is_broken(alert.rule, run) for run in listed)
        else:
            true = self.is_watched(alert.subject) and before.about not in self.pending(name)
        if not true and (alert.breach or self.is_watched(alert.subject)):
            raise Violation(f"it is not so: {alert}")

    def _judge_round(self, watcher):
        """Judge the breaches after a round that could read all."""
        last = {run.subject: run for run in runs(self.index)}
        expected = {
            (rule, subject)
            for rule, subject in itertools.product(("failed", "duration"), last)
            if is_broken(rule, last[subject]) and self.is_watched(subject)
        }
        for rule, what in [*(("delay", pipeline) for pipeline in self.watched), ("edits", "edits")]:
            subject, pending = f"index {what}" if rule == "delay" else "users", self.pending(what)
            # Of another daemon it may be open already, as for that one it is older.
            if pending and (
                (rule, subject) in self.breaches
                or self.clock.passed - watcher.latest[what, min(pending)] > getattr(LIMITS, rule)
            ):
                expected.add((rule, subject))
        self._compare(expected, set())

    def _judge_unreadable(self, serving, closed):
        """Judge that a new daemon, which tries all jobs, has said which cannot read what they need."""
        if {"/runs/", "/alerts/", "/log/"} & {name for _, name in closed}:
            return
        read = [name for which, name in closed if which != "put"]
        needed = {"/edits/": "flush edits", "/pipelines/": f"index {serving}"}
        for name, subject in needed.items():
            if name in read and ("failed", subject) not in self.breaches:
                raise Violation(f"{subject} has failed")

    def _compare(self, expected, perhaps):
        found = {*self.breaches}
        if found - expected - perhaps or expected - found:
            extra, missing = sorted(found - expected - perhaps), sorted(expected - found)
            raise Violation(f"open, and well: {extra}; broken, and not open: {missing}")

    def calm(self):
        """Let all be readable for long, perhaps mend what is wrong; the breaches are those of what is wrong."""
        self.closed.clear()
        self.trace.append("calm")
        if self.draw.random() < 0.5:
            self.error = None
        texts = {key: "" for key, text in self.rows.items() if text == "no number"} if self.draw.random() < 0.5 else {}
        with recorded(self.index, "commit", "a") as run:  # what lasts is tried again when there is a new fact
            run.did(to=self.put(self.serves, "a", texts or {3: self.rows.get(3, "")}))
        self.failed["a"] = self.slow["a"] = False
        well: list[bool] = []
        for _ in range(6):
            if self.once:
                self.restart()
            well = [self.step(watcher) for watcher in self.watchers]
            self.clock.passed += 2 * HOUR
        self._judge_calm(well)

    def _judge_calm(self, well):
        misfit = [name for name in self.watched if self._is_misfit(name)]
        expected = {("failed", f"index {name}") for name in misfit}
        late = {("delay", f"index {name}") for name in misfit if self._is_late(name)}
        expected |= {("failed", "opensearch o")} if self.error else set()
        if all(well) is bool(expected):
            raise Violation(f"rounds are {well}")
        # Each round of `--once` believes the times of facts and edits, which a clock that went back makes new.
        perhaps = {*late, *([("failed", "flush edits")] if self.pending("edits") else [])} if self.once else set()
        if self.pending("edits") and not self.once:
            raise Violation("edits are pending")
        expected |= late - perhaps
        for rule, states in (("failed", self.failed), ("duration", self.slow)):
            subjects = {(rule, f"commit {name}"): state for name, state in states.items()}
            expected |= {key for key, state in subjects.items() if state and self.is_watched(key[1])}
            perhaps |= {key for key, state in subjects.items() if state is None}
        self._compare(expected, perhaps)
        wrong = {number: self.sent[number] for number in range(1, self.seen + 1) if self.sent[number] != 1}
        if 0 in wrong.values() or (wrong and not self.alerts_were_closed):
            raise Violation(f"sent, by number: {wrong}")
        if self.head.serving not in misfit and not verify(self.index).is_equal:
            raise Violation("the index is not as its datasources")

    def _is_misfit(self, name):
        return self.defined[name].definition.properties["name"].type == "int" and "no number" in self.rows.values()

    def _is_late(self, name):
        return bool(self.pending(name))


def is_broken(rule, run):
    return bool(run.error) if rule == "failed" else run.seconds > LIMITS.duration


@pytest.fixture
def outcome(new_objects, tmp_path, monkeypatch):
    """Return what is wrong in the history of a seed, or what was counted in it."""
    clock, closed = Clocks(), []
    monkeypatch.setattr(os, "fsync", lambda file: None)  # no computer fails here, and a busy disk is slow

    class Wall(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(clock.now(), tz)

    for module in (transactions, replacement_module):
        monkeypatch.setattr(module, "datetime", Wall)
    for module in (edits, object_set):
        monkeypatch.setattr(module, "now", lambda: int(clock.now() * 1e6))

    def unless_closed(call, kind):
        def refused(store, name, *data):
            if any(each in f"{name}/" and which in ("all", kind) for which, each in closed):
                raise RetriableError("no permission")
            return call(store, name, *data)

        return refused

    for name, kind in (("get", "read"), ("names", "read"), ("directories", "read"), ("put_if_absent", "put")):
        monkeypatch.setattr(RetryingStateStore, name, unless_closed(getattr(RetryingStateStore, name), kind))

    def run(seed):
        closed.clear()
        clock.begin()
        place = tmp_path / str(seed)
        search = Search(new_objects, place, seed, clock, closed)
        again = f"FOREBAY_SEED={seed} FOREBAY_SOAK_SECONDS=0 pytest -m soak -k alerts_of_many_histories {__file__}"
        try:
            for _ in range(search.draw.randrange(1, 3)):
                for action in search.draw.choices([*ACTIONS], [*ACTIONS.values()], k=search.draw.randrange(10, 40)):
                    search.trace.append(action)
                    getattr(search, action)()
                search.calm()
        except Violation as violation:
            return "\n".join([*search.trace, f"{violation}", f"to run it again: {again}"])
        except Exception as error:
            error.add_note(f"to run it again: {again}")
            raise
        finally:
            closed.clear()
            shutil.rmtree(place, ignore_errors=True)
        return search.counts

    return run


@pytest.mark.parametrize("seed", range(5))
def test_each_alert_of_a_history_is_as_the_rules_say(outcome, seed):
    found = outcome(seed)
    assert isinstance(found, Counter), found


@pytest.mark.soak
@pytest.mark.timeout(2 * 3600)
def test_the_alerts_of_many_histories_are_as_the_rules_say(outcome):
    """From the seed FOREBAY_SEED on, for FOREBAY_SOAK_SECONDS."""
    end, counts = time.monotonic() + float(os.environ.get("FOREBAY_SOAK_SECONDS", "60")), Counter()
    for seed in itertools.count(int(os.environ.get("FOREBAY_SEED", "1000"))):
        found = outcome(seed)
        assert isinstance(found, Counter), found
        counts += found + Counter(["histories"])
        if time.monotonic() > end:
            break
    sys.stderr.write(f"{dict(counts)}\n")


def by_the_clock(ages, times):
    first = min(times, default=None)
    return None if first is None else Pending(first, ages._clock.now() - times[first])


NEW_AGES, ROUNDS, UNIQUE = monitor.Ages.__init__, daemon_module._TypeRounds, itertools.count()
MUTANTS = {
    "ages go by the clock that jumps": (monitor.Ages, "oldest", by_the_clock),
    "a daemon believes each time": (monitor.Ages, "__init__", lambda ages, clock, new: NEW_AGES(ages, clock)),
    "a failure before a job begins is not recorded": (ROUNDS, "_record", lambda *given: None),
    "a job that is well again is not recorded": (ROUNDS, "_note_well", lambda *given, **more: None),
    "what is gone is watched": (monitor.Observed, "has", lambda *given: True),
    "a waiting replacement is watched": (ROUNDS, "_watched", lambda rounds, head: [*head.pipelines]),
    "what may be gone begins an alert": (monitor.Observed, "may_be_gone", lambda *given: False),
    "alerts are sent again": (monitor, "sent_name", lambda journal, number: f"{journal.prefix}{next(UNIQUE)}"),
}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.soak(but=["ages go by the clock that jumps", "what is gone is watched"])
def test_the_search_notices(outcome, monkeypatch, name):
    monkeypatch.setattr(*MUTANTS[name])
    assert any(isinstance(outcome(seed), str) for seed in range(60))
