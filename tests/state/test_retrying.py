# SPDX-License-Identifier: Apache-2.0
"""State whose disk or server is away: requests are repeated for a time, and what a person must correct is not."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manual_clock import ManualClock

from forebay.errors import ConfigurationError, RetriableError
from forebay.framework.runtime.host_options import HostOptions
from forebay.retry import RetryPolicy
from forebay.state.local_state_store import LocalStateStore
from forebay.state.state_store import RetryingStateStore
from forebay.table.changelog.state.shard import OperatorState


class Disk:
    """Makes hard links fail for a time; a link is the last step of a write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, number: int, seconds: float) -> None:
        self.tries = 0
        link = os.link

        def fail(*paths: Any) -> None:
            self.tries += 1
            if clock.monotonic() < seconds:
                raise OSError(number, os.strerror(number))
            link(*paths)

        monkeypatch.setattr(os, "link", fail)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> RetryingStateStore:
    """A state in a directory, whose pauses pass at once."""
    return RetryingStateStore(LocalStateStore(str(tmp_path)), RetryPolicy(), clock, clock.advance)


@pytest.mark.parametrize("seconds", [3, 20, 60])
@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_is_read_only_or_full_for_seconds_is_waited_for(
    store: RetryingStateStore, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, number: int, seconds: float
) -> None:
    disk = Disk(monkeypatch, clock, number, seconds)
    assert store.put_if_absent("a", b"x") is True
    assert store.get("a") == b"x" and disk.tries > 1
    assert seconds <= clock.monotonic() <= seconds + 31


def test_after_the_time_out_the_error_is_final_and_says_how_long_it_was_tried(
    store: RetryingStateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    Disk(monkeypatch, clock, errno.EROFS, 10_000)
    with pytest.raises(
        RetriableError, match=r"could not be written .*Read-only.* \(\d+ tries in \d+\.\d s\)"
    ) as caught:
        store.put_if_absent("a", b"x")
    assert 60 <= clock.monotonic() <= 120
    assert caught.value.option == "stateLocation" and "mount the disk for writing" in str(caught.value.advice)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_missing_permission_is_not_waited_for(
    store: RetryingStateStore, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, number: int
) -> None:
    disk = Disk(monkeypatch, clock, number, 10_000)
    with pytest.raises(ConfigurationError, match="no permission to write"):
        store.put_if_absent("a", b"x")
    assert disk.tries == 1 and clock.monotonic() == 0


def test_every_request_is_repeated(clock: ManualClock) -> None:
    class Down:
        location = "mem"

        def __init__(self) -> None:
            self.failures = 5

        def answer(self, *_: Any) -> Any:
            self.failures -= 1
            if self.failures >= 0:
                raise RetriableError("down")
            return ["answer"]

        get = put_if_absent = names = directories = delete = local_path = answer

    requests: list[Callable[[RetryingStateStore], Any]] = [
        lambda store: store.get("a"),
        lambda store: store.put_if_absent("a", b""),
        lambda store: store.names("a/"),
        lambda store: store.directories(""),
        lambda store: store.delete(iter(["a"])),
    ]
    for request in requests:
        request(RetryingStateStore(Down(), RetryPolicy(), clock, clock.advance))


def test_the_state_of_an_operator_is_retried_and_the_default_of_all_is_the_time_out(tmp_path: Path) -> None:
    assert isinstance(OperatorState(str(tmp_path), "op").store(), RetryingStateStore)
    assert RetryPolicy.of(HostOptions()) == RetryPolicy()
    assert RetryPolicy.of(HostOptions(retries=2, retry_timeout="5s")) == RetryPolicy(retries=2, timeout=5.0)
