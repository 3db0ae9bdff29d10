# SPDX-License-Identifier: Apache-2.0
"""The kill list, the sink that shows every row, and the restarting, without Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forebay.errors import ConfigurationError, ContractError, FatalError
from forebay.testkit.kills import POINTS, Kill, KillList, MicroBatchFiles, restart_until_done, run_until_done
from forebay.testkit.processes import alive, end_session, parent_jvm, session_of

# Imports the kit once, and forks a process for each visit.
VISITORS = """
import json, os, sys
from forebay.testkit.kills import KillList
for line in sys.stdin:
    directory, point, times = json.loads(line)
    child = os.fork()
    if child == 0:
        kills = KillList(directory)
        for _ in range(times):
            kills.meet(point)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def visit():
    """Come to a point so many times, in a process of its own; return its exit code."""
    command = [sys.executable, "-P", "-c", VISITORS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as visitors:
        asked, answers = visitors.stdin, visitors.stdout
        assert asked is not None and answers is not None

        def come(kills, point, times=1):
            asked.write(json.dumps([kills.directory, point, times]) + "\n")
            asked.flush()
            return int(answers.readline())

        yield come


@pytest.fixture
def kills(tmp_path) -> KillList:
    return KillList(tmp_path / "kills")


def test_a_process_dies_at_the_visit_that_was_armed_and_only_once(kills, visit):
    kills.arm(Kill("plan-ends", at=3))
    assert visit(kills, "plan-begins", 5) == 0
    assert visit(kills, "plan-ends", 2) == 0
    assert kills.armed() == [Kill("plan-ends", at=3)]
    assert visit(kills, "plan-ends") == -signal.SIGKILL
    assert visit(kills, "plan-ends", 5) == 0
    assert kills.armed() == []
    assert kills.fired() == [Kill("plan-ends", at=3)]


def test_a_kill_that_another_process_takes_meanwhile_is_not_listed(kills, visit):
    kills.arm(Kill("read-first", at=2))
    (Path(kills.directory) / "armed" / "read-first.9").symlink_to("taken")  # named, and not there any more
    assert kills.armed() == [Kill("read-first", at=2)]
    assert [kill for _, kill in kills.armed_files("read-first")] == [Kill("read-first", at=2)]
    assert visit(kills, "read-first") == 0


def test_two_kills_at_one_point_are_two_deaths(kills, visit):
    kills.arm(Kill("read-first"), Kill("read-first", at=2))
    assert [visit(kills, "read-first") for _ in range(3)] == [-signal.SIGKILL, -signal.SIGKILL, 0]


def test_visits_of_many_threads_have_different_numbers(kills, visit):
    kills.arm()
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: kills._visit("read-first"), range(400)))
    assert sorted(numbers) == list(range(1, 401))


def test_another_process_can_be_the_victim(kills):
    kills.arm(Kill("plan-ends", "jvm"))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        kills.these_are(jvm=other.pid, driver=os.getpid())
        kills.meet("plan-ends")
        assert not alive(other.pid)
        assert other.wait() == -signal.SIGKILL


def test_a_broker_dies_at_a_point_only_while_it_runs(kills, visit):
    kills.arm(Kill("read-first", "broker"), Kill("read-first", "broker"))
    for left in (1, 0):
        with subprocess.Popen(["sleep", "600"]) as broker:
            kills.broker_is(broker.pid)
            kills.forget_processes()  # as before each start of a driver
            assert visit(kills, "read-first") == 0
            assert broker.wait(10) == -signal.SIGKILL
        assert visit(kills, "read-first") == 0
        assert len(kills.armed()) == left


def test_an_unregistered_victim_is_an_error(kills):
    kills.arm(Kill("plan-ends", "jvm"))
    with pytest.raises(ConfigurationError, match="no process is registered as 'jvm'"):
        kills.meet("plan-ends")


def test_an_unknown_victim_is_an_error_before_anything_runs():
    with pytest.raises(ConfigurationError, match="'drivers' is no process that can be killed") as caught:
        Kill("plan-ends", "drivers")  # type: ignore[arg-type]
    assert caught.value.advice == "use one of self, executor, jvm, driver, broker"


def test_an_unknown_point_is_an_error():
    with pytest.raises(ConfigurationError, match="'plan-end' is not the name of a kill point"):
        Kill("plan-end")


class Frame:
    def __init__(self, *reads):
        self.reads = list(reads)

    def count(self):
        return len(self.reads[0])

    def collect(self):
        return self.reads[-1]


def test_a_replay_replaces_its_micro_batch(tmp_path):
    files = MicroBatchFiles(tmp_path)
    files(Frame([(1, "a"), (2, "b")]), 0)
    files(Frame([(3, "c")]), 1)
    files(Frame([(2, "b"), (1, "a")]), 0)
    assert files.rows() == ['[1, "a"]', '[2, "b"]', '[3, "c"]']
    assert files.micro_batches() == 2


def test_a_replay_with_other_rows_is_an_error(tmp_path):
    files = MicroBatchFiles(tmp_path)
    files(Frame([(1,), (2,)]), 0)
    with pytest.raises(ContractError, match=r"micro-batch 0 differ.*gone: \['\[2\]'\], new: \['\[3\]'\]"):
        files(Frame([(1,), (3,)]), 0)
    assert files.rows() == ["[1]", "[2]"]


def test_a_doubled_row_in_a_replay_is_an_error(tmp_path):
    files = MicroBatchFiles(tmp_path)
    files(Frame([(1,)]), 0)
    with pytest.raises(ContractError, match="held 1 rows, and its replay has 2"):
        files(Frame([(1,), (1,)]), 0)


def test_actions_that_read_different_rows_are_an_error(tmp_path):
    with pytest.raises(ContractError, match="one action read 1 rows, the next one 2"):
        MicroBatchFiles(tmp_path)(Frame([(1,)], [(1,), (2,)]), 0)


class Query:
    def __init__(self, end):
        self.end = end

    def awaitTermination(self, timeout=None):  # noqa: N802 - Spark's name
        self.end()


def test_a_query_is_started_again_after_a_kill_and_not_after_another_failure(kills):
    def killed():
        kills.take(kills.armed_files("plan-ends")[0][0])
        raise RuntimeError("the runner died")

    def failed():
        raise ValueError("its own fault")

    ends = [killed, lambda: None]
    kills.arm(Kill("plan-ends"))
    assert restart_until_done(lambda: Query(ends.pop(0)), kills) == 2
    with pytest.raises(ValueError, match="its own fault"):
        restart_until_done(lambda: Query(failed), kills)


def test_an_endless_query_is_an_error(kills):
    def killed():
        kills.arm(Kill("plan-ends"))
        kills.take(kills.armed_files("plan-ends")[0][0])
        raise RuntimeError("the runner died")

    with pytest.raises(FatalError, match="the query did not end in 3 starts"):
        restart_until_done(lambda: Query(killed), kills, starts=3)


@pytest.mark.soak
def test_a_program_is_run_again_after_a_kill_also_one_from_outside(kills, tmp_path):
    (tmp_path / "offsets").mkdir()
    program = f"""
        import os, pathlib, signal
        from forebay.testkit.kills import KillList
        kills = KillList({kills.directory!r})
        kills.these_are(jvm=os.getpid(), driver=os.getpid())
        kills.meet("plan-ends")
        pathlib.Path({str(tmp_path)!r}, "offsets", "7").touch()
        if kills.armed():
            signal.pause()
    """
    kills.arm(Kill("plan-ends", "driver"), Kill("offset-logged", "jvm", at=7))
    command = [sys.executable, "-P", "-c", textwrap.dedent(program)]
    assert run_until_done(command, kills, checkpoint=tmp_path) == 3
    assert kills.armed() == []


@pytest.mark.soak
def test_a_kill_from_outside_never_counts_for_a_driver_that_is_dead_already(kills, tmp_path):
    """The file appears, and another kill comes first: the next driver is the victim, as soon as it is there."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").touch()
    program = f"""
        import os, signal
        from forebay.testkit.kills import KillList
        kills = KillList({kills.directory!r})
        kills.meet("plan-ends")
        kills.these_are(jvm=os.getpid(), driver=os.getpid())
        if kills.armed():
            signal.pause()
    """
    kills.arm(Kill("plan-ends"), Kill("offset-logged", "jvm", at=7))
    kills.these_are(jvm=2**22 + 1, driver=2**22 + 1)
    command = [sys.executable, "-P", "-c", textwrap.dedent(program)]
    assert run_until_done(command, kills, checkpoint=tmp_path) == 3
    assert kills.armed() == []


def test_a_program_that_fails_by_itself_is_an_error_with_its_output(kills, tmp_path):
    command = [sys.executable, "-c", "raise SystemExit('no such table')"]
    with pytest.raises(FatalError, match=r"start 1 ended with code 1, without a kill:\nno such table"):
        run_until_done(command, kills, checkpoint=tmp_path)


def test_a_program_that_hangs_is_an_error_and_is_gone(kills, tmp_path, monkeypatch):
    """Its time begins once it runs, so that a slow start of the process does not matter."""

    class Clock:
        sleep = staticmethod(time.sleep)

        @staticmethod
        def monotonic():
            now = time.monotonic()
            return now if there.exists() or now > began + 120 else began

    there, began = tmp_path / "there", time.monotonic()
    monkeypatch.setattr("forebay.testkit.kills.time", Clock)
    program = f"import os; print(os.getpid(), flush=True); open({str(there)!r}, 'w'); os.read(os.pipe()[0], 1)"
    with pytest.raises(FatalError, match="took more than 1 s") as caught:
        run_until_done([sys.executable, "-c", program], kills, checkpoint=tmp_path, timeout=1.0)
    pid = int(str(caught.value).split(":\n")[1].split()[0])
    assert not alive(pid)


def test_a_session_ends_with_the_groups_that_were_made_in_it():
    program = """
        import os, subprocess, sys
        own_group = "import os; os.setpgid(0, 0); print(); os.read(os.pipe()[0], 1)"
        child = subprocess.Popen([sys.executable, "-c", own_group], stdout=subprocess.PIPE)
        child.stdout.readline()
        print(child.pid, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
    assert session_of(leader.pid) == [child]
    end_session(leader.pid)
    assert not alive(child)


def test_a_source_becomes_killable_by_one_more_base(kills):
    """In a process of its own: the hooks stay in the process."""
    program = f"""
        import forebay
        from forebay.testkit.kills import Kill, KillList, Killable
        import pyarrow as pa
        class Numbers(forebay.SimpleSource):
            def schema(self): return pa.schema([("n", pa.int64())])
            def read(self, split): yield {{"n": 1}}
        class KillableNumbers(Killable, Numbers):
            name = "killable_numbers"
        source = KillableNumbers(kills={kills.directory!r})
        assert source.name == "killable_numbers" and source.schema().names == ["n"]
        print(forebay.peek(source).table.num_rows, flush=True)
        KillList(source.kills).arm(Kill("discovered"))
        forebay.peek(source)
    """
    command = [sys.executable, "-P", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("1\n", -signal.SIGKILL), done.stderr


def test_a_task_of_a_single_record_batch_has_a_middle_too(kills):
    """In processes of their own, with tasks of these record batches: what each has handed on when it dies."""
    handed_on = {(4,): [2], (1,): [1], (3, 2): [1], (1, 1): [1]}
    program = f"""
        import os, sys
        import forebay, pyarrow as pa
        from forebay.framework.tasks.read_task import Delivered
        from forebay.spark import batch
        from forebay.testkit.kills import Kill, KillList, Killable
        class Numbers(forebay.SimpleSource):
            def schema(self): return pa.schema([("n", pa.int64())])
            def read(self, split): yield {{"n": 1}}
        class KillableNumbers(Killable, Numbers): name = "killable_numbers"
        def task(rows, *, runtime=None):
            for count in rows:
                yield Delivered("all", pa.record_batch({{"n": list(range(count))}}), count)
        batch.run_task = task
        KillableNumbers(kills={kills.directory!r})
        for rows in {list(handed_on)}:
            KillList({kills.directory!r}).arm(Kill("read-middle"))
            child = os.fork()
            if child == 0:
                for delivered in batch.run_task(rows):
                    print(delivered.batch.num_rows, end=" ", flush=True)
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    """
    command = [sys.executable, "-P", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [[int(number) for number in line.split()] for line in done.stdout.splitlines()]
    assert found == [[*rows, -signal.SIGKILL] for rows in handed_on.values()], done.stderr


def test_every_point_is_described():
    assert all(len(text) > 20 for text in POINTS.values())


def test_a_process_without_a_jvm_above_it_has_none_to_kill(kills):
    assert parent_jvm() is None
    kills.arm(Kill("read-middle", "executor"))
    with pytest.raises(ConfigurationError, match="(?s)no Java process stands above .*points of tasks"):
        kills.meet("read-middle")
