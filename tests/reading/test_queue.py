# SPDX-License-Identifier: Apache-2.0
"""Q-1 … Q-4: the hand-over queue."""

from __future__ import annotations

import threading

import pytest

from forebay.framework.reading.fetchers import HandOver, HandOverQueue
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.split_reader import Fetched
from forebay.testkit.scripted import counting_batch


def hand_over(tag: str, rows: int = 1) -> HandOver:
    return HandOver([Fetched(tag, counting_batch(tag, 0, rows), rows)])


def make(capacity: int = 2, max_bytes: int = 1 << 30) -> HandOverQueue:
    return HandOverQueue(ThreadRuntime(), capacity, max_bytes)


@pytest.mark.parametrize(("capacity", "max_bytes"), [(0, 1), (1, 0), (-1, 5)])
def test_q1_bounds_must_be_positive(capacity: int, max_bytes: int) -> None:
    """Q-1: capacity > 0."""
    with pytest.raises(ValueError, match="must be positive"):
        make(capacity, max_bytes)


def test_q1_a_refused_hand_over_stays_with_the_caller_who_is_signalled_when_there_is_room() -> None:
    """Q-1: a full queue refuses, and signals the caller once there is room."""
    queue, signal = make(1), threading.Event()
    first, second = hand_over("a"), hand_over("b")
    assert queue.offer(first, signal)
    assert not queue.offer(second, signal)
    assert not signal.is_set()
    assert queue.poll() is first
    assert signal.is_set()
    assert queue.offer(second, signal)
    assert queue.poll() is second


def test_q1_bytes_are_bounded_too_but_one_large_hand_over_passes_alone() -> None:
    """Q-1 (ours): bounded in bytes; never stuck on one that is larger than the bound."""
    large = hand_over("a", 1000)
    queue, signal = make(100, large.nbytes - 1), threading.Event()
    assert queue.offer(large, signal)
    assert not queue.offer(hand_over("b"), signal)
    assert queue.poll() is large
    assert signal.is_set()
    assert queue.offer(hand_over("b"), signal)


def test_q2_a_wake_up_before_the_wait_is_remembered() -> None:
    """Q-2: room that appears between the refusal and the wait is not missed."""
    queue, signal = make(1), ThreadRuntime().signal()
    queue.offer(hand_over("a"), signal)
    assert not queue.offer(hand_over("b"), signal)
    queue.poll()
    assert signal.wait(0)


def test_q3_poll_never_blocks_and_keeps_the_order() -> None:
    """Q-3: first in, first out; None when empty."""
    queue, signal = make(3), threading.Event()
    assert queue.poll() is None
    puts = [hand_over(tag) for tag in "abc"]
    assert all(queue.offer(one, signal) for one in puts)
    assert [queue.poll() for _ in range(4)] == [*puts, None]


def test_q4_availability_follows_the_content() -> None:
    """Q-4: incomplete while empty, complete after a put, a fresh one once emptied."""
    queue, signal = make(3), threading.Event()
    early = queue.availability()
    assert not early.done()
    queue.offer(hand_over("a"), signal)
    queue.offer(hand_over("b"), signal)
    assert early.done()
    queue.poll()
    assert queue.availability().done()
    queue.poll()
    assert not queue.availability().done()
    assert queue.availability() is queue.availability()


def test_q4_notify_available_completes_without_an_element_until_the_next_empty_poll() -> None:
    """Q-4: notifyAvailable."""
    queue = make()
    waiting = queue.availability()
    queue.notify_available()
    assert waiting.done()
    assert queue.availability().done()
    assert queue.poll() is None
    assert not queue.availability().done()


def test_q4_callbacks_may_use_the_queue() -> None:
    """Q-4: futures complete outside the lock."""
    queue, signal, polled = make(), threading.Event(), []
    queue.availability().add_done_callback(lambda _: polled.append(queue.poll()))
    first = hand_over("a")
    queue.offer(first, signal)
    assert polled == [first]


def test_many_producers_and_consumers_pass_everything_once() -> None:
    """Q-3: Flink's testConcurrency, with the result checked on the main thread."""
    queue, per, producers = make(5), 2000, 5
    got: list[str] = []
    lock = threading.Lock()
    done = threading.Event()

    def produce(number: int) -> None:
        signal = threading.Event()
        for value in range(per):
            item = HandOver([Fetched(f"{number}:{value}")])
            while True:
                signal.clear()
                if queue.offer(item, signal):
                    break
                signal.wait()

    def consume() -> None:
        while not done.is_set() or not queue.is_empty():
            available = queue.availability()
            item = queue.poll()
            if item is not None:
                with lock:
                    got.append(item.fetched[0].split_id)
            elif not available.done():
                threading.Event().wait(0.0005)

    makers = [threading.Thread(target=produce, args=(number,)) for number in range(producers)]
    takers = [threading.Thread(target=consume) for _ in range(3)]
    for thread in makers + takers:
        thread.start()
    for thread in makers:
        thread.join()
    done.set()
    for thread in takers:
        thread.join()
    assert sorted(got) == sorted(f"{number}:{value}" for number in range(producers) for value in range(per))
