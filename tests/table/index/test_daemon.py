# SPDX-License-Identifier: Apache-2.0
"""The daemon of a location: rounds, retries, runs of jobs, several daemons, faults and kills."""

from __future__ import annotations

import itertools
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from child_processes import Child

from forebay.clock import SystemClock
from forebay.errors import ConfigurationError, DataError, FatalError, RetriableError
from forebay.index import Datasource, IndexDaemon, Limits, ObjectType, Property
from forebay.inspection.index_report import index_page
from forebay.options.secret import Secret
from forebay.retry import RetryPolicy
from forebay.state.local_state_store import LocalStateStore
from forebay.state.state_store import RetryingStateStore
from forebay.table.index import daemon as daemon_module
from forebay.table.index import follower as follower_module
from forebay.table.index import monitor, pipelines
from forebay.table.index import replacement as replacement_module
from forebay.table.index.flush import flush
from forebay.table.index.gc import collect
from forebay.table.index.monitor import alerts
from forebay.table.index.replacement import begin_replacement
from forebay.table.index.runs import Run, graph_text, recorded, run_journal, runs
from forebay.table.index.verify import verify

HOUR = 3600.0


class Clocks:
    """A clock that tests set."""

    def __init__(self):
        self.passed, self.offset = 0.0, time.time()

    def now(self):
        return self.passed + self.offset

    def monotonic(self):
        return self.passed


@pytest.fixture
def clock():
    """A clock that only tests move."""
    return Clocks()


@pytest.fixture
def sent():
    """The alerts that came, as texts."""
    return []


@pytest.fixture
def daemon_of(clock, sent):
    """Make a daemon of objects."""

    def make(objects, **options):
        options.setdefault("clock", clock)
        options.setdefault("alerts", [lambda alert: sent.append((alert.rule, alert.subject, alert.breach))])
        hashes = lambda definition, keys: [objects.key_hash(key) for key in keys]  # noqa: E731 - a value
        return IndexDaemon(objects.location, **{"key_hashes": hashes, "retry": EXACT, **options})

    return make


class Exact(RetryPolicy):
    """Pauses without jitter."""

    def pause(self, failures, random, error=None):
        return self.first_pause * self.factor ** (failures - 1)


EXACT = Exact(first_pause=300.0, factor=2.0, max_pause=HOUR)


class Nameless:
    def catch_up(self): ...


class Second(Nameless):
    name = "second"


@pytest.mark.parametrize("failing", ["N", "P"])
@pytest.mark.parametrize("returned", [None, [5], [Nameless()], [Second(), Second()], ConfigurationError("no database")])
def test_followers_that_cannot_be_made_end_a_daemon_in_its_first_round_alone(
    objects_at, daemon_of, returned, failing, caplog
):
    def followers(name):
        if isinstance(returned, Exception) and name == failing:
            raise returned
        return returned if name == failing else []

    objects = objects_at()
    objects.commit("a", [{"id": 1, "name": "x"}])
    daemon = daemon_of(objects, followers=followers)
    assert daemon.step()
    other = objects_at(replace(objects.definition, name=failing), objects.location)
    other.commit("a", [{"id": 1, "name": "x"}])
    objects.commit("a", [{"id": 2, "name": "x"}], follow=False)
    assert daemon.step() is False
    assert f"{failing}: the round failed, and the next one follows" in caplog.text
    assert objects.index.newest_version("000001").data == 2
    with pytest.raises(ConfigurationError, match="no database|followers returned|have one name"):
        daemon_of(objects, followers=followers).step()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("object_types", 5),
        ("object_types", [5]),
        ("every", "a"),
        ("every", None),
        ("every", math.nan),
        ("every", -1.0),
        ("gc_every", 10**400),
        ("gc_every", "x"),
        ("followers", 5),
    ],
)
def test_arguments_of_a_daemon_are_checked(objects, daemon_of, option, value):
    with pytest.raises(ConfigurationError, match=f"{option} is") as caught:
        daemon_of(objects, **{option: value})
    assert caught.value.option == option


def jobs(objects):
    return [(run.subject, run.error) for run in runs(objects.index)]


def test_a_round_brings_the_index_up_to_the_log(objects, daemon_of, sent):
    objects.commit("a", [{"id": 1, "name": "x"}], follow=False)
    objects.commit("a", [{"id": 2, "name": "y"}], follow=False)
    daemon = daemon_of(objects)
    assert daemon.step() and objects.node().count() == 2
    (run,) = runs(objects.index)
    assert (run.subject, run.since, run.to, run.decision) == ("index 000001", -1, 2, "FULL")
    assert run.shares == () and run.counts == {"objects": 2} and not run.error
    assert daemon.step() and len(runs(objects.index)) == 1 and sent == []


def test_it_serves_all_types_below_the_location_or_those_that_are_named(objects_at, daemon_of):
    first = objects_at()
    second = objects_at(ObjectType("P", {"id": "bigint"}, first.definition.datasources), first.location)
    for each in (first, second):
        each.commit("a", [{"id": 1, "name": "x"}], follow=False)
    (Path(first.location) / "lost+found").mkdir()
    assert daemon_of(first, object_types=["O"]).step()
    assert (jobs(first), jobs(second)) == ([("index 000001", "")], [])
    assert daemon_of(first).step()
    assert jobs(second) == [("index 000001", "")]


@pytest.fixture
def closed(monkeypatch):
    """Parts of names of files that cannot be read or written."""
    names: list[str] = []
    get, put, listed = (getattr(RetryingStateStore, name) for name in ("get", "put_if_absent", "names"))

    def unless_closed(call):
        def refused(self, name, *data):
            if any(each in f"{name}/" for each in names):
                raise RetriableError("no permission")
            return call(self, name, *data)

        return refused

    for name, call in (("get", get), ("put_if_absent", put), ("names", listed)):
        monkeypatch.setattr(RetryingStateStore, name, unless_closed(call))
    return names


@pytest.mark.parametrize(
    ("names", "breaches"),
    [
        (["/edits/"], [("failed", "flush edits")]),
        (["/pipelines/"], [("failed", "index 000001"), ("edits", "users")]),
        (["/edits/", "/pipelines/"], [("failed", "flush edits"), ("failed", "index 000001")]),
        (["/runs/"], [("edits", "users")]),
        (["/runs/", "/segments/"], [("delay", "index 000001"), ("edits", "users")]),
    ],
)
def test_a_directory_that_cannot_be_read_holds_up_no_rule(objects, daemon_of, clock, sent, closed, names, breaches):
    objects.commit("a", [{"id": 1, "name": "x"}])
    objects.node().edit(1, name="mine")
    daemon = daemon_of(objects, gc_every=None, limits=Limits(edits=HOUR, delay=HOUR))
    assert daemon.step() and sent == []
    objects.commit("a", [{"id": 2, "name": "y"}], follow=False)
    closed += names
    for _ in range(4):
        daemon.step()
        clock.passed += HOUR
    assert sorted(sent) == sorted((*each, True) for each in breaches)
    served = not {"/pipelines/", "/segments/"} & {*names}
    closed.clear()
    assert (objects.index.newest_version("000001").data == 2) is served
    clock.passed += 10 * HOUR
    for _ in range(3):
        daemon.step()
    assert objects.node().count() == 2 and objects.index.head().edits.offset == 1
    errors = [run for run in runs(objects.index) if run.error]
    assert {("failed", run.subject) for run in errors} == {each for each in breaches if each[0] == "failed"}
    assert all("no permission" in graph_text(run, runs(objects.index), "O") for run in errors)
    ended = {each[:2] for each in sent if not each[2]}
    assert ended == {each[:2] for each in sent if each[2]} >= {*breaches}


def test_a_daemon_whose_first_round_could_not_read_believes_the_times_later(objects, daemon_of, clock, sent, closed):
    objects.commit("a", [{"id": 1, "name": "x"}])
    objects.node().edit(1, name="mine")
    clock.offset += 5 * HOUR
    daemon = daemon_of(objects, limits=Limits(failed=False, edits=4 * HOUR))
    closed.append("/edits/")
    daemon.step()
    closed.clear()
    clock.passed += 600
    daemon.step()
    assert sent == [("edits", "users", True)]


def test_after_an_unreadable_round_the_times_of_a_replacement_that_serves_since_are_not_believed(
    objects, daemon_of, clock, sent, closed
):
    objects.commit("a", [{"id": 1, "name": "x"}])
    daemon = daemon_of(objects, limits=Limits(failed=False))
    closed.append("/edits/")
    daemon.step()
    clock.offset += 24 * HOUR
    closed.clear()
    new = defined(objects, Property("string", filter=False, text=True))
    assert new.replace().serves
    new.commit("a", [{"id": 2, "name": "x"}], follow=False)
    closed.append("/segments/")
    daemon.step()
    assert sent == []
    clock.passed += 601
    daemon.step()
    assert sent == [("delay", "index r000002", True)]


@pytest.mark.parametrize("seen_in", [1, 3])
def test_a_replacement_is_late_from_the_round_on_that_sees_that_it_can_be_built(
    objects, daemon_of, clock, sent, seen_in
):
    objects.commit("a", [{"id": 1, "name": "x"}])
    new = defined(objects, Property("string", column="title"))
    assert new.replace().waits
    clock.passed += 3 * HOUR
    rounds = itertools.count(1)

    def until():
        number = next(rounds)
        if number == seen_in:
            clock.passed += 3 * HOUR
            clock.offset += 24 * HOUR
            new.frames = {"id", "name", "title", "note"}
            new.commit("a", [{"id": 1, "name": "x", "title": "t"}], "snapshot", follow=False)
        time.sleep(0.05)  # for the thread that builds
        assert number < 100
        return objects.index.head().serving != "000001" and number > 5

    if seen_in == 1:
        until()
    daemon_of(objects).run(until, sleep=lambda seconds: setattr(clock, "passed", clock.passed + seconds))
    assert sent == []


def test_a_replacement_that_can_be_built_and_is_not_is_late(objects, daemon_of, clock, sent, closed):
    objects.commit("a", [{"id": 1, "name": "x"}])
    daemon = daemon_of(objects, limits=Limits(failed=False))
    assert daemon.step()
    new = defined(objects, Property("string", filter=False, text=True))
    begin_replacement(objects.index, new.definition, "000001", swap=False)
    closed.append("/segments/")
    daemon.step()
    clock.passed += 601
    daemon.step()
    assert sent == [("delay", "index r000002", True)]


def test_a_replacement_whose_files_cannot_be_read_fails_and_its_alert_ends(objects, daemon_of, clock, sent, closed):
    objects.commit("a", [{"id": 1, "name": "x"}])
    new = defined(objects, Property("string", filter=False, text=True))
    assert not new.replace(swap=False).serves
    daemon = daemon_of(objects)
    assert daemon.step()
    objects.commit("a", [{"id": 2, "name": "x"}], follow=False)
    closed.append("/pipelines/r")
    assert not daemon.step() and objects.node().count() == 2
    assert sent == [("failed", "replacement r000002", True)]
    closed.clear()
    clock.passed += HOUR
    assert daemon.step() and sent[1:] == [("failed", "replacement r000002", False)]


@pytest.mark.parametrize("job", ["index", "replacement"])
def test_a_replacement_that_may_wait_begins_no_alert_and_ends_none(objects, daemon_of, clock, sent, closed, job):
    objects.commit("a", [{"id": 1, "name": "x"}])
    waiting = defined(objects, Property("string", column="title"))
    assert waiting.replace().waits
    failed(objects, job, "r000002")
    closed.append("/pipelines/")
    for _ in range(2):
        assert not daemon_of(objects, gc_every=None).step() and sent == [("failed", "index 000001", True)]
    closed.clear()
    assert daemon_of(objects).step() and sent[1:] == [("failed", "index 000001", False)]
    sent.clear()
    begin_replacement(objects.index, defined(objects, Property("string", text=True)).definition, "000001", swap=False)
    failed(objects, job, "r000003", FatalError("it is wrong"))
    closed[:] = ["/segments/"]
    daemon_of(objects, gc_every=None).step()
    breach = ("failed", f"{job} r000003", True)
    assert breach in sent
    sent.clear()
    closed[:] = ["/pipelines/"]
    daemon_of(objects, gc_every=None).step()
    assert breach not in sent and ("failed", f"{job} r000003", False) not in sent


def test_a_build_that_fails_before_the_round_is_over_is_one_alert(objects, daemon_of, clock, sent, monkeypatch):
    objects.commit("a", [{"id": 1, "name": "x"}])
    new = defined(objects, Property("int"))
    begin_replacement(objects.index, new.definition, "000001")
    monkeypatch.setattr(daemon_module, "collect", lambda index: (time.sleep(0.3), collect(index))[1])
    rounds = itertools.count(1)
    daemon = daemon_of(objects)
    daemon.run(lambda: next(rounds) == 4, sleep=lambda seconds: setattr(clock, "passed", clock.passed + seconds))
    assert [each for each in sent if each[0] == "failed"] == [("failed", "index r000002", True)]


def test_runs_that_cannot_be_read_end_no_round_in_which_a_job_is_well_again(objects, daemon_of, clock, sent, closed):
    objects.commit("a", [{"id": 1, "name": "x"}])
    broken = []
    daemon = daemon_of(objects, gc_every=None, each_round=lambda name, alerts: broken.append(len(alerts)))
    closed.append("/pipelines/")
    assert not daemon.step()
    closed[:] = ["/runs/"]
    clock.passed += HOUR
    assert not daemon.step()
    closed.clear()
    assert daemon.step() and daemon.step() and broken == [1, 1, 0, 0]
    assert sent == [("failed", "index 000001", breach) for breach in (True, False)]


def failed(objects, job, name, error=None):
    """Record that a job failed."""
    error = error or RetriableError("down")
    with pytest.raises(type(error)), recorded(objects.index, job, name) as run:
        run.did(since=objects.index.head().number)
        raise error


def test_a_commit_to_a_datasource_that_is_gone_is_not_watched(objects, daemon_of, sent):
    objects.commit("a", [{"id": 1, "name": "x"}])
    failed(objects, "commit", "c")
    failed(objects, "commit", "b")
    daemon = daemon_of(objects)
    assert daemon.step() and sent == [("failed", "commit b", True)]
    first, _ = objects.definition.datasources
    assert objects.defined(replace(objects.definition, datasources=[first])).replace().serves
    assert daemon.step() and sent[1:] == [("failed", "commit b", False)]


def test_a_job_with_nothing_to_do_is_well_for_each_new_daemon(objects, daemon_of, sent):
    objects.commit("a", [{"id": 1, "name": "x"}])
    failed(objects, "index", "000001")
    assert daemon_of(objects).step() and sent == []
    assert [run.error for run in runs(objects.index) if run.job == "index"][-2:] == ["RetriableError", ""]


@pytest.mark.parametrize("was_open", [False, True])
@pytest.mark.parametrize("job", ["index 000001", "index r000002", "opensearch o", "flush edits"])
def test_a_failure_that_is_listed_after_a_newer_success_opens_and_keeps_no_alert(
    objects, daemon_of, clock, sent, job, was_open
):
    class Database:
        name = "o"

        def catch_up(self):
            pass

    objects.commit("a", [{"id": 1, "name": "x"}])
    assert not defined(objects, Property("string", filter=False, text=True)).replace(swap=False).serves
    daemon = daemon_of(objects, followers=lambda name: [Database()])
    assert daemon.step()
    if was_open:
        failed(objects, *job.split())
        pipelines = dict.fromkeys(objects.index.head().pipelines)
        last = {job: runs(objects.index)[-1]}
        observed = monitor.Observed(pipelines, runs=last, building="r000002", datasources={"a", "b"})
        of_another = monitor.Alerts(monitor.alert_journal(objects.index), "O", daemon.alerts, clock)
        (opened,) = of_another.update(observed, Limits())
        assert opened.subject == job and sent.pop() == ("failed", job, True)
    with recorded(objects.index, *job.split()) as run:
        run.did(to=objects.index.head().number)
    failed(objects, *job.split())  # of a process that began before
    assert daemon.step() and daemon_of(objects).step()
    assert sent == [("failed", job, False)] * was_open


def test_what_was_not_done_again_is_not_well(objects, daemon_of, clock, sent):
    objects.commit("a", [{"id": 1, "name": "x"}])
    new = defined(objects, Property("string", filter=False, text=True))
    assert not new.replace(swap=False).serves
    objects.node().edit(1, name="mine")
    failed(objects, "flush", "edits")
    failed(objects, "replacement", "r000002", FatalError("it is wrong"))
    daemon = daemon_of(objects)
    breaches = [("failed", "flush edits", True), ("failed", "replacement r000002", True)]
    for _ in range(3):
        assert daemon.step() and sent == breaches
    clock.passed += 7 * HOUR
    assert daemon.step() and sent[2:] == [("failed", "flush edits", False)]


def test_edits_that_cannot_be_read_are_an_alert_of_a_daemon_that_flushes_none(objects, daemon_of, sent):
    objects.commit("a", [{"id": 1, "name": "x"}])
    objects.index.store.put_if_absent(objects.index.edits.name(1), b"{")
    daemon = daemon_of(objects, key_hashes=None)
    assert [daemon.step(), daemon.step()] == [False, False] and sent == [("failed", "flush edits", True)]


def test_a_collection_is_tried_again_in_minutes(objects, daemon_of, clock, sent, monkeypatch):
    objects.commit("a", [{"id": 1, "name": "x"}])
    calls = []

    def collect(index):
        calls.append(clock.passed)
        raise RetriableError("down")

    monkeypatch.setattr(daemon_module, "collect", collect)
    daemon = daemon_of(objects)
    for _ in range(4):
        daemon.step()
        clock.passed += 300
    assert calls == [0, 300, 900] and sent == [("failed", "gc", True)]
    monkeypatch.undo()
    clock.passed += HOUR
    assert daemon.step() and sent[1:] == [("failed", "gc", False)]


def test_a_job_that_failed_before_it_read_the_log_is_shown_with_its_error(objects):
    objects.commit("a", [{"id": 1, "name": "x"}])
    with pytest.raises(RetriableError), recorded(objects.index, "opensearch", "o"):
        raise RetriableError("no answer")
    shown = graph_text(runs(objects.index)[-1], runs(objects.index), "O")
    assert shown.startswith("O: it failed before it read the log\n") and "no answer" in shown


def test_a_flush_of_nothing_writes_nothing(objects):
    with pytest.raises(ConfigurationError, match="nothing of 'O' is below"):
        flush(objects.index, lambda definition, keys: [])
    assert objects.index.store.directories("") == []


def with_datasources(objects, *names, but=""):
    """The object type with more datasources, without one."""
    kept = [each for each in objects.definition.datasources if each.name != but]
    added = [Datasource(name, {f"p{name}": Property("string")}) for name in names]
    return objects.defined(replace(objects.definition, datasources=[*kept, *added]))


@pytest.mark.parametrize("waits", [True, False])
def test_a_fact_of_a_datasource_that_an_index_does_not_have_is_not_late(objects, daemon_of, clock, sent, waits):
    objects.commit("a", [{"id": 1, "name": "x"}])
    new = with_datasources(objects, "c", "d") if waits else with_datasources(objects, but="b")
    assert bool(new.replace(swap=False).waits) is waits
    daemon = daemon_of(objects)
    assert daemon.step()
    if waits:
        new.commit("c", [{"id": 1, "pc": "x"}], "snapshot", follow=False)
    else:
        objects.commit("b", [{"id": 1, "city": "Oslo"}], follow=False)
    for _ in range(6):
        assert daemon.step()
        clock.passed += HOUR
    assert sent == []


@pytest.mark.parametrize("place", ["/edits/", "/pipelines/r"])
@pytest.mark.parametrize("runs_too", [False, True])
def test_a_job_that_can_read_again_is_well_also_for_a_new_daemon(
    objects, daemon_of, clock, sent, closed, place, runs_too
):
    objects.commit("a", [{"id": 1, "name": "x"}])
    assert not defined(objects, Property("string", filter=False, text=True)).replace(swap=False).serves
    objects.node().edit(1, name="mine")
    objects.commit("a", [{"id": 2, "name": "x"}], follow=False)
    daemon = daemon_of(objects, gc_every=None)
    closed.append(place)
    assert not daemon.step()
    ((rule, subject, _),) = sent
    closed[:] = ["/runs/"] if runs_too else []
    clock.passed += 600
    (daemon if runs_too else daemon_of(objects)).step()
    closed.clear()
    assert daemon_of(objects).step() and daemon_of(objects).step()
    assert sent[1:] == [(rule, subject, False)]


def test_a_failure_that_could_not_be_recorded_is_tried_again_until_it_is(objects, daemon_of, clock, sent, closed):
    objects.commit("a", [{"id": 1, "name": "x"}])

    class Database:
        name = "o"

        def catch_up(self):
            with recorded(objects.index, "opensearch", "o", clock) as run:
                run.did(since=0)
                raise DataError("a value does not fit")

    daemon = daemon_of(objects, followers=lambda name: [Database()])
    closed.append("/runs/")
    assert not daemon.step()
    closed.clear()
    clock.passed += 600
    assert not daemon.step() and sent == [("failed", "opensearch o", True)]


def test_a_passing_fault_after_lasting_ones_is_tried_again_soon(objects, daemon_of, clock):
    objects.commit("a", [{"id": 1, "name": "x"}])
    errors: list[Exception] = [DataError("it does not fit")]
    tried = []

    class Database:
        name = "o"

        def catch_up(self):
            tried.append(clock.passed)
            if errors:
                raise errors[0]

    daemon = daemon_of(objects, followers=lambda name: [Database()])
    for number in range(6):
        objects.commit("a", [{"id": 1, "name": f"x{number}"}], follow=False)
        assert not daemon.step()
    errors[:] = [RetriableError("down")]
    objects.commit("a", [{"id": 1, "name": "z"}], follow=False)
    assert not daemon.step()
    errors.clear()
    clock.passed += 299
    assert not daemon.step()
    clock.passed += 1
    assert daemon.step() and tried == [0.0] * 7 + [300.0]


def test_a_named_type_whose_log_cannot_be_read_holds_up_no_other(objects_at, daemon_of, closed):
    first = objects_at()
    second = objects_at(ObjectType("P", {"id": "bigint"}, first.definition.datasources), first.location)
    for each in (first, second):
        each.commit("a", [{"id": 1, "name": "x"}], follow=False)
    closed.append("O/log/")
    daemon = daemon_of(first, object_types=["O", "P"])
    assert not daemon.step() and second.node().count() == 1
    closed.clear()
    assert daemon.step() and first.node().count() == 1


def test_an_index_whose_files_are_gone_is_an_alert(objects, daemon_of, sent):
    objects.commit("a", [{"id": 1, "name": "x"}])
    shutil.rmtree(Path(objects.location) / "O" / "pipelines" / "000001")
    assert not daemon_of(objects).step() and sent[:1] == [("failed", "index 000001", True)]


def test_a_commit_to_what_no_definition_has_is_not_watched_if_none_can_be_read(objects, daemon_of, sent, closed):
    objects.commit("a", [{"id": 1, "name": "x"}])
    failed(objects, "commit", "c")
    closed.append("/pipelines/")
    assert not daemon_of(objects, gc_every=None).step() and sent == [("failed", "index 000001", True)]


@pytest.mark.parametrize("names", [(), ("O",)])
def test_a_type_that_is_removed_and_made_anew_is_watched_from_its_beginning(objects, daemon_of, clock, sent, names):
    objects.commit("a", [{"id": 1, "name": "x"}])
    objects.node().edit(1, name="e")
    broken = []
    daemon = daemon_of(objects, object_types=names, each_round=lambda name, alerts: broken.append(len(alerts)))
    assert daemon.step()
    with recorded(objects.index, "commit", "a") as run:
        run.did(to=1)
    assert daemon.step()
    shutil.rmtree(Path(objects.location) / "O")
    assert [daemon.step() for _ in range(3)] == [False] * 3  # nothing is below the location, which may be away
    assert broken == [0, 0, 0]
    objects.commit("a", [{"id": 2, "name": "y"}])
    with pytest.raises(DataError), recorded(objects.index, "commit", "a"):
        raise DataError("a misfit")
    clock.passed += 8 * HOUR
    assert daemon.step() and sent == [("failed", "commit a", True)]


def test_edits_are_flushed_when_that_is_due(objects, daemon_of, clock):
    objects.commit("a", [{"id": number, "name": "x"} for number in range(1500)])
    daemon, node = daemon_of(objects), objects.node()
    node.edit(1, name="e")
    assert daemon.step() and objects.index.head().edits.offset == 0
    clock.passed += 6 * HOUR
    clock.offset -= 24 * HOUR  # the clock of the computer does not count
    assert daemon.step() and objects.index.head().edits.offset == 1
    assert [run.counts for run in runs(objects.index) if run.job == "flush"] == [{"edits": 1, "changes": 1}]
    node.edit_many([(number, {"name": "many"}) for number in range(1000)])
    assert daemon.step() and objects.index.head().edits.offset == 2
    assert objects.node().where(name="many").count() == 1000 and verify(objects.index).is_equal


def defined(objects, name, **options):
    """The object type with another definition of the property `name`."""
    first, second = objects.definition.datasources
    properties = {**first.properties, "name": name}
    return objects.defined(replace(objects.definition, datasources=[replace(first, properties=properties), second]))


def test_a_replacement_that_waited_for_a_commit_is_built_and_serves(objects, daemon_of, sent):
    objects.commit("a", [{"id": number, "name": "x"} for number in range(5)])
    new = defined(objects, Property("string", column="title"))
    assert new.replace().waits
    daemon = daemon_of(objects)
    assert daemon.step() and objects.index.head().serving == "000001"
    assert "r000002 is built behind it, before it can serve: commit a snapshot" in index_page([objects.index])
    new.commit("a", [{"id": number, "title": "t", "name": "x"} for number in range(5)], "snapshot", follow=False)
    assert daemon.step()
    assert objects.index.head().serving == "r000002" and objects.node().get(3)["name"] == "t"
    made = [(run.subject, run.to, run.decision, run.reason) for run in runs(objects.index)][-3:]
    assert made == [
        ("index r000002", 3, "FULL", "the first version of the pipeline"),
        ("replacement r000002", 4, "", "it serves"),
        ("index r000002", 4, "INCREMENTAL", "nothing changed"),
    ]
    assert new.replace().serves  # whoever began it finds it done
    assert daemon.step() and sent == [] and verify(objects.index).is_equal


def test_a_replacement_that_fails_is_an_alert_and_never_touches_live(objects, daemon_of, sent, clock):
    objects.types["a"] = {"name": "string"}
    objects.commit("a", [{"id": 1, "name": "1"}, {"id": 2, "name": "x"}])
    with pytest.raises(DataError):
        defined(objects, Property("int")).replace()
    daemon = daemon_of(objects)
    for number in (3, 4):
        objects.commit("a", [{"id": number, "name": str(number)}], follow=False)
        assert not daemon.step() and objects.node().count() == number
        assert not daemon.step()
    clock.passed += 1000
    daemon.step()
    assert sent == [("failed", "index r000002", True), ("delay", "index r000002", True)]
    failed = [run for run in runs(objects.index) if run.error]
    assert [(run.subject, run.error) for run in failed] == [("index r000002", "DataError")] * 3
    objects.commit("a", [{"id": 2, "name": "2"}], follow=False)
    assert daemon.step() and objects.node().get(2)["name"] == 2
    assert sorted(sent[2:]) == [("delay", "index r000002", False), ("failed", "index r000002", False)]


def test_the_alerts_of_a_replacement_end_when_it_is_dropped(objects, daemon_of, sent, monkeypatch):
    objects.commit("a", [{"id": 1, "name": "1"}])
    new, daemon = defined(objects, Property("string")), daemon_of(objects)
    monkeypatch.setattr(replacement_module, "_differing", lambda *given: ["the object 1 differs"])
    with pytest.raises(FatalError, match="the object 1 differs"):
        new.replace()
    assert not daemon.step() and objects.index.head().serving == "000001"
    assert sent == [("failed", "replacement r000002", True)]
    objects.replace()
    assert daemon.step() and sent[1:] == [("failed", "replacement r000002", False)]


def test_a_replacement_that_is_not_to_serve_is_kept_up_to_date(objects, daemon_of):
    objects.commit("a", [{"id": 1, "name": "1"}])
    new = defined(objects, Property("string"))
    assert not new.replace(swap=False).serves
    objects.commit("a", [{"id": 1, "name": "2"}], follow=False)
    daemon = daemon_of(objects)
    assert daemon.step() and objects.node(pipeline="r000002").get(1)["name"] == "2"
    assert objects.index.head().serving == "000001" and new.replace().pipeline == "r000002"
    assert daemon.step() and objects.index.head().serving == "r000002"


def test_edits_made_since_the_plan_are_not_lost_by_a_swap(objects, daemon_of, sent):
    objects.commit("a", [{"id": 1, "name": "x", "note": "n"}])
    first, second = objects.definition.datasources
    properties = {"name": Property("string", column="title")}
    new = objects.defined(replace(objects.definition, datasources=[replace(first, properties=properties), second]))
    assert new.replace().waits
    objects.node().edit(1, note="mine")
    new.commit("a", [{"id": 1, "title": "t", "name": "x", "note": "n"}], "snapshot")
    daemon = daemon_of(objects)
    assert not daemon.step() and sent == [("failed", "replacement r000002", True)]
    assert "drop_edits=['note']" in runs(objects.index)[-1].text and objects.node().get(1)["note"] == "mine"
    assert new.replace(drop_edits=["note"]).serves and daemon.step()
    assert objects.index.head().serving == "r000002" and sent[1:] == [("failed", "replacement r000002", False)]


def test_a_build_that_takes_long_holds_up_no_round(objects, daemon_of, clock, monkeypatch):
    objects.commit("a", [{"id": 1, "name": "1"}])
    begin_replacement(objects.index, defined(objects, Property("string")).definition, "000001")
    goes_on, build = threading.Event(), follower_module.build_shard

    def slow(task):
        if task.pipeline != "000001":
            assert goes_on.wait(60)
        return build(task)

    monkeypatch.setattr(follower_module, "build_shard", slow)
    rounds = []

    def until():
        rounds.append(objects.index.head().serving)
        if len(rounds) < 4:
            objects.commit("a", [{"id": 1, "name": str(len(rounds))}], follow=False)
        if len(rounds) == 4:
            assert objects.node().get(1)["name"] == "3"
            goes_on.set()
        return len(rounds) >= 4

    daemon = daemon_of(objects)
    daemon.run(until, lambda seconds: setattr(clock, "passed", clock.passed + seconds))
    assert rounds == ["000001"] * 4 and objects.index.head().serving == "r000002"  # the end of the daemon waits for it
    assert [run for run in runs(objects.index) if run.error] == []
    begin_replacement(objects.index, objects.definition, "r000002")
    daemon.run(lambda: True)  # it may run again
    assert objects.index.definition(objects.index.head().serving).properties["name"].filter


@pytest.mark.parametrize("place", ["/pipelines/r", "/pipelines/", "/edits/", "/runs/", "/log/"])
def test_an_unreadable_moment_during_a_long_build_is_no_alert_of_it_and_loses_no_age(
    objects, daemon_of, clock, sent, closed, monkeypatch, place
):
    objects.commit("a", [{"id": 1, "name": "1"}])
    begin_replacement(objects.index, defined(objects, Property("string", filter=False)).definition, "000001")
    builds, goes_on, build = threading.Event(), threading.Event(), follower_module.build_shard

    def slow(task):
        if task.pipeline != "000001":
            builds.set()
            assert goes_on.wait(60)
        return build(task)

    monkeypatch.setattr(follower_module, "build_shard", slow)
    came = []

    def until():
        assert builds.wait(60)
        came.append([each for each in sent if each[1].endswith("r000002")])
        closed[:] = [place] * (len(came) == 1)
        clock.passed += 301
        clock.offset += 24 * HOUR * (len(came) == 1)
        if len(came) == 4:
            closed.clear()
            goes_on.set()
        return len(came) == 4

    daemon = daemon_of(objects, gc_every=None)
    daemon.run(until, lambda seconds: setattr(clock, "passed", clock.passed + seconds))
    # Seen at 0 s, unreadable at 331 s, it is late at 662 s.
    assert came == [[], [], *[[("delay", "index r000002", True)]] * 2]
    assert daemon.step() and objects.index.head().serving == "r000002"
    assert [each for each in sent if each[1].endswith("r000002")] == [
        ("delay", "index r000002", breach) for breach in (True, False)
    ]


def test_without_hashes_of_keys_edits_stay_pending_and_there_is_an_alert(objects, daemon_of, clock, sent):
    objects.commit("a", [{"id": 1, "name": "x"}])
    objects.node().edit(1, name="e")
    daemon = daemon_of(objects, key_hashes=None)
    daemon.step()
    clock.passed += 7 * HOUR + 5
    assert daemon.step() and sent == [("edits", "users", True)]
    objects.flush()
    assert daemon.step() and sent[1:] == [("edits", "users", False)]


def test_a_lasting_error_waits_for_new_data(objects, daemon_of, clock, sent):
    objects.types["a"] = {"name": "string"}
    objects.commit("a", [{"id": 1, "name": "x"}])
    daemon = daemon_of(objects)
    assert daemon.step()

    def refuse(task):
        raise DataError("'x' of the row 1 is no number", option="name", advice="correct the row")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(follower_module.Follower, "_step", lambda *given, **more: refuse(None))
        objects.commit("a", [{"id": 2, "name": "y"}], follow=False)
        for _ in range(3):
            assert not daemon.step()
            clock.passed += 24 * HOUR
        failed = [run for run in runs(objects.index) if run.error]
        assert [(run.error, run.since, run.to) for run in failed] == [("DataError", 1, 2)]
        assert "correct the row" in failed[0].text
        assert sent == [("failed", "index 000001", True), ("delay", "index 000001", True)]
        objects.commit("a", [{"id": 3, "name": "z"}], follow=False)
        assert not daemon.step() and len([run for run in runs(objects.index) if run.error]) == 2
    objects.commit("a", [{"id": 4, "name": "z"}], follow=False)
    assert daemon.step() and objects.node().count() == 4
    assert sorted(sent[2:]) == [("delay", "index 000001", False), ("failed", "index 000001", False)]


def test_a_passing_fault_is_tried_again_after_pauses_that_grow(objects, daemon_of, clock, sent):
    objects.commit("a", [{"id": 1, "name": "x"}])
    tried = []

    class Broken:
        name = "second"

        def catch_up(self):
            tried.append(clock.passed)
            with recorded(objects.index, "opensearch", "second", clock) as run:
                run.did(since=0)
                if clock.passed < 2000:
                    raise RetriableError("it is down", advice="start it")

    daemon = daemon_of(objects, followers=lambda name: [Broken()])
    for _ in range(90):
        assert daemon.step() is (clock.passed >= 2100)
        clock.passed += 30.0
    assert tried[:4] == [0.0, 300.0, 900.0, 2100.0] and tried[4:] == [2130.0 + 30 * each for each in range(19)]
    assert sent == [("failed", "opensearch second", True), ("failed", "opensearch second", False)]
    assert [run.error for run in runs(objects.index)][1:] == ["RetriableError"] * 3 + [""]


def test_a_new_daemon_tries_again_and_repeats_no_alert(objects, daemon_of, sent, monkeypatch):
    objects.commit("a", [{"id": 1, "name": "x"}], follow=False)
    broken = []
    with monkeypatch.context() as patched:
        patched.setattr(follower_module.Follower, "_step", lambda *given, **more: 1 / 0)
        assert not daemon_of(objects).step()
        daemon = daemon_of(objects, each_round=lambda name, found: broken.append((name, [each.rule for each in found])))
        assert not daemon.step()
    assert broken == [("O", ["failed"])]  # what is open is known to a new process
    failed = [run for run in runs(objects.index) if run.error]
    assert [(run.error, "division by zero" in run.text) for run in failed] == [("ZeroDivisionError", True)] * 2
    assert sent == [("failed", "index 000001", True)]
    assert daemon_of(objects).step() and sent[1:] == [("failed", "index 000001", False)]


def test_an_alert_that_a_sink_refuses_comes_again(objects, daemon_of, sent):
    objects.commit("a", [{"id": 1, "name": "x"}])
    with pytest.raises(ValueError, match="no"), recorded(objects.index, "commit", "a") as run:
        run.did(since=1)
        raise ValueError("no")
    answers = [OSError("the pager is down")]

    def sink(alert):
        if answers:
            raise answers.pop()
        sent.append(alert.text)

    daemon = daemon_of(objects, alerts=[sink])
    for _ in range(3):
        assert daemon.step()
    assert len(sent) == 1 and "ValueError" in sent[0]


def test_a_run_never_has_a_secret(objects, monkeypatch):
    objects.commit("a", [{"id": 1, "name": "x"}])
    monkeypatch.setenv("THE_PASSWORD", "hunter2-hunter2")
    secret = Secret("env:THE_PASSWORD").reveal()
    with pytest.raises(RetriableError), recorded(objects.index, "opensearch", "o") as run:
        run.did(since=1)
        raise RetriableError(f"cannot reach http://me:{secret}@host")
    assert "hunter2" not in runs(objects.index)[-1].text and "cannot reach" in runs(objects.index)[-1].text


def test_the_last_runs_are_kept_in_order_though_nobody_collects(objects, monkeypatch):
    monkeypatch.setattr("forebay.table.index.runs.KEPT", 5)
    for number in range(12):
        objects.commit("a", [{"id": number, "name": "x"}])
    assert [run.number for run in runs(objects.index)] == [6, 7, 8, 9, 10, 11, 12]
    objects.commit("a", [{"id": 99, "name": "x"}])
    assert runs(objects.index)[-1].number == 13


def test_the_graph_of_a_run_leads_from_the_datasource_to_each_database():
    known = [
        Run("commit", "a", since=0, to=1, counts={"inserted": 5}, number=1),
        Run("index", "live", since=0, to=1, decision="FULL", reason="the first", number=2),
        Run("opensearch", "o", 0, 0, 0, 1, error="DataError", text="DataError: too long\n  next step: cut", number=3),
        Run("commit", "b", since=1, to=1, error="DataError", text="a key twice", number=4),
        Run("commit", "b", since=1, to=2, counts={"inserted": 1}, number=5),
        Run("commit", "b", since=2, to=3, counts={"updated": 0, "deletes_unknown": 1}, number=6),
        Run("commit", "b", since=3, to=3, number=7),
        Run("commit", "b", since=3, to=4, counts={"inserted": 1}, number=8),
        Run("commit", "b", since=4, to=4, number=9),
    ]
    text = graph_text(known[0], known, "O")
    assert text.splitlines() == [
        "O: fact 1 of the log",
        "datasource a ─▶ commit a, run 1: 0.0 s: 5 inserted",
        "  └─▶ index live, run 2: 0.0 s: FULL the first",
        "        └─▶ nodes: from their next refresh on",
        "  └─▶ opensearch o, run 3: 0.0 s: FAILED, DataError",
        "        DataError: too long",
        "          next step: cut",
    ]
    assert graph_text(known[2], known, "O") == text
    failed = graph_text(known[3], known, "O")
    assert "b, run 4: 0.0 s: FAILED, DataError" in failed and failed.endswith("nothing: it was not committed")
    assert graph_text(known[4], known, "O").endswith("index: no run has this fact yet")
    assert graph_text(known[5], known[:6], "O").endswith("index: no run has this fact, which changed no row")
    assert graph_text(known[5], known, "O").endswith("index: no run has this fact yet")
    assert graph_text(known[8], known, "O").endswith("index: no run has this fact yet")


def test_it_stops_after_the_job_that_goes_on(objects, daemon_of):
    objects.commit("a", [{"id": 1, "name": "x"}], follow=False)

    class Second:
        name = "second"

        def catch_up(self):
            daemon.stop()

    third = Second()
    third.name, third.catch_up = "third", lambda: 1 / 0
    daemon = daemon_of(objects, followers=lambda name: [Second(), third])
    daemon.run(sleep=lambda seconds: 1 / 0)
    assert jobs(objects) == [("index 000001", "")]


def test_rounds_come_at_their_times_until_a_condition_holds(objects, daemon_of, clock):
    objects.commit("a", [{"id": 1, "name": "x"}])
    begun = []

    def sleep(seconds):
        assert seconds <= 1.0
        clock.passed += seconds

    daemon_of(objects, every=2.5).run(until=lambda: begun.append(clock.passed) or len(begun) == 4, sleep=sleep)
    assert begun == [0.0, 2.5, 5.0, 7.5]


def in_child(work):
    """Run work in a forked process; return its id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def test_two_daemons_at_once_do_no_harm(objects, daemon_of, tmp_path):
    objects.commit("a", [{"id": number, "name": "x"} for number in range(50)])
    node = objects.node()
    ready = tmp_path / "ready"
    log = tmp_path / "alerts"

    def note(alert):
        with log.open("a") as file:
            file.write(f"{alert.number} {alert.breach}\n")

    def work():
        daemon = daemon_of(
            objects, alerts=[note], gc_every=0.01, limits=Limits(delay=1e-9, edits=1e-9), clock=SystemClock()
        )
        daemon.step()
        (tmp_path / f"{os.getpid()}").touch()
        while not ready.exists():
            daemon.step()
            time.sleep(0.005)
        daemon.step()

    children = [in_child(work) for _ in range(2)]
    try:
        while not all((tmp_path / f"{child}").exists() for child in children):
            time.sleep(0.01)
        for number in range(12):
            objects.commit("a", [{"id": number, "name": str(number)}, {"id": 100 + number}], follow=False)
            node.edit(number, note="e")
            if number % 4 == 0:
                objects.flush(follow=False)
    finally:
        ready.write_text("")
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0, 0]
    objects.flush()
    assert verify(objects.index).is_equal and objects.node().count() == 62
    assert [run for run in runs(objects.index) if run.error] == []
    raised = alerts(objects.index)
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    assert sorted(lines) == sorted(f"{alert.number} {alert.breach}" for alert in raised)


class Faulty:
    """A store that fails now and then: before a request, or after it."""

    def __init__(self, store, chance):
        self._store, self.location = store, store.location
        self._random, self._chance = random.Random(1), chance

    def __getattr__(self, name):
        method = getattr(self._store, name)
        if name == "local_path":
            return method

        def call(*given):
            before = self._random.random() < self._chance[0]
            if before:
                raise RetriableError("injected: the request was lost")
            done = method(*given)
            if self._random.random() < self._chance[0]:
                raise RetriableError("injected: the answer was lost")
            return done

        return call


def long_run(objects, daemon_of, clock, sent, monkeypatch, goes_on):
    """Commits and edits while the store of the daemon fails; at the end it does not, and all is well."""
    chance, randomly = [0.0], random.Random(2)
    objects.commit("a", [{"id": number, "name": "x"} for number in range(20)])
    node, names = objects.node(), dict.fromkeys(range(20), "x")
    daemon = daemon_of(objects, gc_every=1200.0)
    with monkeypatch.context() as patched:
        patched.setattr(pipelines, "RetryingStateStore", lambda store: Faulty(store, chance))
        daemon.step()
    rounds = 0
    while goes_on(rounds):
        key = randomly.randrange(20)
        names[key] = f"{rounds}"
        if randomly.random() < 0.5:
            objects.commit("a", [{"id": key, "name": names[key]}], follow=False)
            node.refresh()
        if randomly.random() < 0.2:
            node.edit(key, note=f"{rounds}")
        chance[0] = randomly.choice([0.0, 0.05, 0.3])
        daemon.step()
        clock.passed += randomly.choice([30.0, 400.0, 4000.0])
        clock.offset += randomly.choice([0.0, 86_400.0, -86_400.0])
        rounds += 1
    chance[0] = 0.0
    objects.commit("a", [{"id": key, "name": name} for key, name in names.items()], follow=False)
    for _ in range(3):
        clock.passed += 2 * HOUR
        daemon.step()
    clock.passed += 7 * HOUR
    assert daemon.step() and daemon.step()
    found = verify(objects.index)
    assert found.is_equal and objects.index.newest_version("000001").data == objects.index.head().number
    assert [row["name"] for row in objects.node().objects.limit(50).fetch().rows] == list(names.values())
    last, kept = {}, list(alerts(objects.index))
    for alert in kept:  # a collection may have removed the first ones
        before = last.get((alert.rule, alert.subject), not alert.breach if kept[0].number > 1 else False)
        assert before is not alert.breach
        last[alert.rule, alert.subject] = alert.breach
    assert not any(last.values()) and len(sent) >= len(alerts(objects.index)) > 0


def test_faults_of_the_store_pass(objects, daemon_of, clock, sent, monkeypatch):
    long_run(objects, daemon_of, clock, sent, monkeypatch, lambda rounds: rounds < 40)


@pytest.mark.soak
def test_faults_of_the_store_pass_for_long(objects, daemon_of, clock, sent, monkeypatch):
    """Set FOREBAY_SOAK_SECONDS to 3600 for an hour."""
    end = time.monotonic() + float(os.environ.get("FOREBAY_SOAK_SECONDS", "60"))
    long_run(objects, daemon_of, clock, sent, monkeypatch, lambda rounds: time.monotonic() < end)


@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_of_the_daemon_at_any_write_loses_nothing(objects_at, daemon_of, tmp_path, when):
    def prepared():
        objects = objects_at()
        objects.commit("a", [{"id": number, "name": "x"} for number in range(20)])
        node = objects.node()
        node.edit_many([(number % 20, {"note": "e"}) for number in range(1000)])
        with pytest.raises(ConfigurationError), recorded(objects.index, "commit", "a") as run:
            run.did(since=1)
            raise ConfigurationError("refused")
        objects.commit("a", [{"id": 99, "name": "new"}], follow=False)
        return objects

    def work(objects, log):
        def note(alert):
            with log.open("a") as file:
                file.write(f"{alert.number}\n")

        daemon_of(objects, alerts=[note], limits=Limits(delay=1e-9)).step()

    for at in itertools.count(1):
        objects, log = prepared(), tmp_path / f"{when}{at}"
        code = Child(lambda: work(objects, log), at, when).wait()  # noqa: B023 - now
        if code == 0:
            break
        assert code == -signal.SIGKILL
        work(objects, log)
        work(objects, log)
        assert verify(objects.index).is_equal and objects.node().count() == 21
        assert objects.index.head().edits.offset == 1
        numbers = [int(line) for line in log.read_text().split()]
        assert set(numbers) == {alert.number for alert in alerts(objects.index)}
        assert len(numbers) - len(set(numbers)) <= 1
        names = set(run_journal(objects.index).numbers())
        assert names == set(range(1, len(names) + 1))
    assert at > 9


def test_the_command_ends_in_good_order_at_sigterm(objects):
    objects.commit("a", [{"id": 1, "name": "x"}], follow=False)
    command = [sys.executable, "-P", "-m", "forebay", "index", "run", objects.location, "--every", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while not runs(objects.index):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and out.endswith("stopped\n")
    assert objects.index.newest_version("000001").data == 1


def test_a_location_that_is_no_directory_for_a_while_ends_no_daemon(objects, daemon_of, caplog):
    objects.commit("a", [{"id": 1, "name": "x"}])
    location, away, rounds = Path(objects.location), Path(f"{objects.location}-away"), []

    def until():
        rounds.append(location.is_file())
        if len(rounds) == 1:
            location.rename(away)
            location.write_text("")
        elif len(rounds) == 2:
            location.unlink()
            away.rename(location)
            objects.commit("a", [{"id": 2, "name": "x"}], follow=False)
        return len(rounds) == 3

    daemon_of(objects, every=0).run(until)
    assert rounds == [False, True, False]
    assert "the round failed, and the next one follows" in caplog.text
    assert objects.index.newest_version("000001").data == 2


def test_a_fact_that_is_listed_and_is_not_there_ends_a_round_alone(objects, daemon_of, monkeypatch, caplog):
    objects.commit("a", [{"id": 1, "name": "x"}])
    get, rounds = LocalStateStore.get, []

    def until():
        gone = (lambda store, name: None if "/log/" in name else get(store, name)) if not rounds else get
        monkeypatch.setattr(LocalStateStore, "get", gone)
        rounds.append(caplog.text)
        return len(rounds) == 3

    daemon_of(objects, every=0).run(until)
    assert "is listed, and cannot be opened" not in rounds[0]
    assert "O/log/000000000001.json is listed, and cannot be opened" in rounds[1]


@pytest.mark.parametrize(("storage", "text"), [(5, "storage is of the type int"), ({1: "x"}, "a name in storage is 1")])
def test_settings_of_s3_that_are_none_are_refused(tmp_path, storage, text):
    with pytest.raises(ConfigurationError, match=text):
        IndexDaemon(str(tmp_path), storage=storage)


def test_names_and_locations_of_nothing_are_refused(objects, daemon_of, tmp_path):
    objects.commit("a", [{"id": 1, "name": "x"}])
    with pytest.raises(ConfigurationError, match=r"nothing of 'Other' is below .* yet; there is O\n"):
        daemon_of(objects, object_types=["O", "Other"]).run()
    with pytest.raises(ConfigurationError, match="no object type is below"):
        IndexDaemon(str(tmp_path / "empty")).run()


def test_facts_that_changed_nothing_are_read_once_and_are_no_delay(objects, daemon_of, clock, sent, monkeypatch):
    for _ in range(5):
        objects.commit("a", [{"id": 1, "name": "x"}], follow=False)
    objects.follow()
    for number in range(5):
        objects.commit("a", [{"id": 1, "name": "x"}], transaction=f"again {number}", follow=False)
    daemon = daemon_of(objects)
    daemon.step()
    read = []
    get = LocalStateStore.get
    monkeypatch.setattr(LocalStateStore, "get", lambda store, name: read.append(name) or get(store, name))
    clock.passed += 1000.0
    assert daemon.step() and sent == []
    assert [name for name in read if "/log/" in name and name < objects.index.log.name(10)] == []


def test_a_flush_of_nothing_is_no_run(objects):
    objects.commit("a", [{"id": 1, "name": "x"}])
    flush(objects.index, lambda definition, keys: [])
    assert jobs(objects) == [("index 000001", "")]


@pytest.mark.parametrize("place", ["runs", "alerts"])
def test_a_damaged_run_or_alert_ends_no_rule(objects, daemon_of, clock, sent, place):
    objects.commit("a", [{"id": 1, "name": "x"}])
    objects.node().edit(1, name="y")
    clock.passed += HOUR
    limits = Limits(edits=1e-9)
    daemon_of(objects, limits=limits).step()
    newest = max(Path(objects.location, "O", place).glob("*[0-9].json"))
    newest.unlink()
    newest.write_bytes(b"")
    sent.clear()
    daemon = daemon_of(objects, limits=limits)
    assert daemon.step() and (place == "runs" or sent == [("edits", "users", True)])
    objects.flush()
    assert daemon.step() and sent[-1] == ("edits", "users", False)
    assert runs(objects.index) and alerts(objects.index)


def test_an_alert_function_that_does_not_return_holds_up_no_job(objects, daemon_of, clock, sent, monkeypatch):
    monkeypatch.setattr(monitor, "_PATIENCE", 0.2)
    objects.commit("a", [{"id": 1, "name": "x"}])
    objects.node().edit(1, name="y")
    clock.passed += HOUR
    goes_on = threading.Event()
    daemon = daemon_of(objects, limits=Limits(edits=1e-9), alerts=[lambda _: goes_on.wait(60), sent.append])
    assert daemon.step()
    objects.commit("a", [{"id": 1, "note": "z"}], follow=False)
    assert daemon.step() and objects.index.newest_version("000001").data == 2 and sent == []
    goes_on.set()
    while not sent:
        daemon.step()
    assert [alert.rule for alert in sent] == ["edits"]


def test_a_function_of_each_round_that_fails_ends_no_daemon(objects, daemon_of):
    objects.commit("a", [{"id": 1, "name": "x"}])
    rounds = []

    def failing(name, broken):
        rounds.append((name, broken))
        raise ZeroDivisionError

    daemon = daemon_of(objects, each_round=failing)
    assert daemon.step() and daemon.step()
    assert rounds == [("O", [])] * 2


def test_what_a_daemon_cannot_use_is_refused(objects):
    objects.commit("a", [{"id": 1, "name": "x"}])
    for options, message in (
        ({"alerts": print}, r"give a list of functions, as alerts=\[page_me\]"),
        ({"alerts": [None]}, "give a list of functions"),
        ({"limits": {"delay": 3}}, r"limits=Limits\(delay=300\)"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            IndexDaemon(objects.location, **options)
    with pytest.raises(ConfigurationError, match="the limit is '3'"):
        Limits(delay="3")  # type: ignore[arg-type]
    assert IndexDaemon(Path(objects.location), "O").step()


def test_a_commit_counts_though_its_run_cannot_be_listed(objects):
    objects.commit("a", [{"id": 1, "name": "x"}])
    journal = Path(objects.location, "O", "runs")
    shutil.rmtree(journal)
    journal.write_text("no directory")
    with recorded(objects.index, "commit", "a") as run:
        run.did(to=objects.commit("a", [{"id": 1, "name": "y"}]).number)
    assert objects.node().get(1)["name"] == "y"
