# SPDX-License-Identifier: Apache-2.0
"""Two runs on one checkpoint directory: one of them fails; kills leave no unfinished files."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ConfigurationError
from forebay.framework.inprocess import checkpoints as checkpoint_store
from forebay.framework.inprocess import run
from forebay.framework.inprocess.checkpoints import Checkpoint, CheckpointStore
from forebay.state import local_state_store


class Numbers(forebay.SimpleSource):
    def schema(self):
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        for n in range(split.position or 0, 5):
            yield {"n": n}


def names(directory):
    return sorted(path.name for path in directory.iterdir() if path.name != ".lock")


# ---- the lock: the file system has locks, as nearly all have


def test_a_second_run_is_refused_while_the_first_is_open(source, world, kit, one_thread, tmp_path):
    """The error names the process that uses the directory; nothing is read twice."""
    first = run(source, checkpoint=tmp_path, runtime=one_thread)
    with pytest.raises(ConfigurationError, match=f"process {os.getpid()} on ") as caught:
        run(source, checkpoint=tmp_path, runtime=kit.OneThread())
    assert caught.value.option == "checkpoint" and "close" in caught.value.advice
    rows = kit.rows_of([next(first)])
    first.ack()
    first.close()
    with run(source, checkpoint=tmp_path, runtime=kit.OneThread()) as again:
        assert sorted(rows + kit.rows_of(again)) == world.everything()


def test_a_run_that_is_left_or_fails_at_its_start_frees_the_directory(source, kit, tmp_path):
    for _batch in run(source, checkpoint=tmp_path, runtime=kit.OneThread()):
        break
    run(source, checkpoint=tmp_path, runtime=kit.OneThread()).checkpoint()
    for expected in ("nix", "number"):
        if expected == "number":
            (tmp_path / names(tmp_path)[-1]).write_text("{}")
        with pytest.raises(forebay.ForebayError):
            run(Numbers(), checkpoint=tmp_path)
    (tmp_path / names(tmp_path)[-1]).unlink()
    with run(source, checkpoint=tmp_path, runtime=kit.OneThread()) as again:
        assert list(again)


def test_a_forked_process_does_not_hold_the_directory(source, kit, tmp_path):
    """A pool of the consumer's own may outlive a killed run."""
    first = run(source, checkpoint=tmp_path, runtime=kit.OneThread())
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    first.close()
    run(source, checkpoint=tmp_path, runtime=kit.OneThread()).close()
    os.close(writer)
    os.waitpid(child, 0)
    os.close(reader)


# ---- the fence: where there are no locks


@pytest.fixture
def no_locks(monkeypatch):
    def flock(_handle, _operation):
        raise OSError(errno.ENOTSUP, "no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)


def test_of_two_runs_one_fails_though_its_rivals_first_checkpoints_were_pruned(
    source, world, kit, no_locks, tmp_path, caplog
):
    slow = run(source, checkpoint=tmp_path, runtime=kit.OneThread())
    next(slow)
    fast = run(source, checkpoint=tmp_path, runtime=kit.OneThread())
    for _batch in fast:
        fast.checkpoint()
    assert "checkpoint-0000000001.json" not in names(tmp_path)
    with pytest.raises(ConfigurationError, match="another run") as caught:
        list(slow)
    assert caught.value.option == "checkpoint" and "has no locks" in caplog.text
    assert kit.rows_of(run(source, checkpoint=tmp_path, runtime=kit.OneThread())) == []


class Turns:
    """Runs one of two threads, named 0 and 1, at a time, in random order."""

    def __init__(self, chance):
        self._chance = chance
        self._condition = threading.Condition()
        self._running = {"0", "1"}
        self._turn = "0"

    def wait(self):
        with self._condition:
            # Mostly the same one goes on: it must come round to pruning while the other one stands still.
            if self._turn not in self._running or self._chance.random() < 0.07:
                self._turn = self._chance.choice(sorted(self._running))
            self._condition.notify_all()
            assert self._condition.wait_for(lambda: self._turn == threading.current_thread().name, 30)

    def leave(self):
        with self._condition:
            self._running.discard(threading.current_thread().name)
            self._turn = min(self._running, default="")
            self._condition.notify_all()

    def before(self, step):
        def waiting(*args, **options):
            self.wait()
            return step(*args, **options)

        return waiting


@pytest.mark.parametrize("seed", [*range(60), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(60, 150))])
def test_two_runs_never_both_write_their_last_checkpoint(tmp_path, monkeypatch, seed):
    """In any order of steps: files of the slower run may be pruned, the newest are not."""
    chance = random.Random(seed)
    turns, finished, refused = Turns(chance), [], []
    monkeypatch.setattr(os, "fsync", lambda _handle: None)
    monkeypatch.setattr(checkpoint_store, "put_if_absent", turns.before(local_state_store.put_if_absent))
    monkeypatch.setattr(CheckpointStore, "_numbers", turns.before(CheckpointStore._numbers))
    monkeypatch.setattr(CheckpointStore, "_path", turns.before(CheckpointStore._path))

    def write(count):
        store = CheckpointStore(tmp_path, Numbers())
        try:
            for number in range(1, count + 1):
                store.write(Checkpoint(number, None, []))
            finished.append(store)
        except ConfigurationError as error:
            refused.append(str(error))
        finally:
            turns.leave()

    threads = [threading.Thread(target=write, args=(chance.randint(1, 8),), name=name) for name in "01"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(finished) <= 1 and len(finished) + len(refused) == 2
    assert all("another run" in text for text in refused)


# ---- litter


KILLED = """
import os, signal, sys
import forebay
sys.path.insert(0, sys.argv[2])
from test_two_runs import Numbers
os.fsync = lambda _handle: os.kill(os.getpid(), signal.SIGKILL)
list(forebay.run(Numbers(), checkpoint=sys.argv[1]))
"""


def test_what_a_killed_run_left_half_written_is_removed_by_the_next_one(tmp_path):
    """It never removes files of a live run: a second run is refused before."""
    killed = subprocess.run(
        [sys.executable, "-P", "-c", KILLED, str(tmp_path), str(Path(__file__).parent)], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert [name for name in names(tmp_path) if name.endswith(".tmp")]
    with run(Numbers(), checkpoint=tmp_path) as again:
        assert not [name for name in names(tmp_path) if name.endswith(".tmp")]
        being_written = tmp_path / ".checkpoint-0000000009.json.abc.tmp"
        being_written.touch()
        with pytest.raises(ConfigurationError):
            run(Numbers(), checkpoint=tmp_path)
        assert being_written.exists() and again.to_table().num_rows == 5


def test_without_locks_nothing_is_removed(no_locks, tmp_path):
    """Without locks it is unknown whether another run writes there."""
    being_written = tmp_path / ".checkpoint-0000000009.json.abc.tmp"
    being_written.touch()
    run(Numbers(), checkpoint=tmp_path).close()
    assert being_written.exists()
