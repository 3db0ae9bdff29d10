# SPDX-License-Identifier: Apache-2.0
"""Checks of enumerator and readers together, in a little host that kills and restores them: ENU, TRK."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from forebay.errors import ContractError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.outcomes import Broken, NotApplicable, Skip
from forebay.testkit.rig import Cut, Rig
from forebay.testkit.subject import Subject

COORDINATION: Checks = []

_READERS = 2
_MOST_KILLS = 8
_ANSWER = 0.1


@check_into(COORDINATION)
def all_splits_are_assigned(subject: Subject) -> None:
    """ENU-11: every split of an unbounded source is assigned, although readers ask once.

    Let two readers ask as readers do, and compare with what one gets that asks again and again.
    """
    if subject.source.bounded:
        raise NotApplicable("the source is bounded: a reader asks again whenever it has finished a split")
    with subject.enumerator() as enumerator:
        if isinstance(enumerator, DiscoveryEnumerator):
            raise NotApplicable("the framework assigns what the source discovers")
    found = {split.id for split in subject.discover()}
    with Rig(subject, _READERS) as rig:
        since = time.monotonic()
        while left := sorted(found - rig.assigned):
            before = len(rig.assigned)
            rig.step()
            since = time.monotonic() if len(rig.assigned) > before else since
            if time.monotonic() - since > subject.patience / 2:
                subject.blocked = "the enumerator leaves splits unassigned: see ENU-11"
                raise Broken(
                    f"{len(left)} of {len(found)} splits stayed unassigned with {_READERS} readers: {left[:10]}; "
                    "a reader of an unbounded source asks once, and again only when a split is finished",
                    "push splits without an end: call assign_splits() in add_reader() and after each discovery, "
                    "not only in handle_split_request()",
                )


@check_into(COORDINATION)
def idle_readers_end(subject: Subject) -> None:
    """ENU-10: more readers than splits: all rows come, and every reader comes to its end.

    Run with two readers more than there are splits.
    """
    _need_all(subject)
    with Rig(subject, len(subject.everything) + 2) as rig:
        _finish(rig, subject)
        _compare(rig, subject, "read by more readers than there are splits")


@check_into(COORDINATION)
def readers_register_late(subject: Subject) -> None:
    """ENU-4: readers may register in any order, and late.

    Let the second reader register first, the first one some steps later.
    """
    _need_all(subject)
    with Rig(subject, _READERS, register=[1]) as rig:
        for _ in range(5):
            rig.step()
        rig.register(0)
        _finish(rig, subject)
        _compare(rig, subject, "with readers registered out of order")


@check_into(COORDINATION)
def killed_readers(subject: Subject) -> None:
    """ENU-3: splits of a killed reader come back and are read on: each row once.

    Kill a reader at sampled steps, before and after checkpoints.
    """
    _need_all(subject)
    chance = subject.random("kill")
    steps = _steps(subject)
    moments = list(range(steps + 1)) if steps < _MOST_KILLS else sorted(chance.sample(range(steps + 1), _MOST_KILLS))
    for moment in moments:
        with Rig(subject, _READERS) as rig:
            rig.run(lambda: rig.steps >= moment or _done(rig, subject))  # noqa: B023 - called at once
            checkpoint = chance.choice([None, False, not subject.live])  # a complete one may commit and clean up
            if checkpoint is not None:
                rig.checkpoint(complete=checkpoint)
            rig.kill(chance.randrange(_READERS))
            _finish(rig, subject)
            _compare(rig, subject, f"with a reader killed at step {moment} of about {steps}")
        subject.need_time()


@check_into(COORDINATION)
def dead_requesters_skipped(subject: Subject) -> None:
    """ENU-2: a reader that asked for a split and failed is skipped.

    Let a reader register, ask and fail at once; its replacement comes when the answer must have been due.
    """
    _need_all(subject)
    with Rig(subject, _READERS) as rig:
        rig.fail(0)
        due = time.monotonic() + _ANSWER
        while time.monotonic() < due:
            rig.step()
        rig.replace()
        _finish(rig, subject)
        _compare(rig, subject, "with a reader that failed after asking for a split")


@check_into(COORDINATION)
def crashes(subject: Subject) -> None:
    """ENU-5: a checkpoint at any step has every split once: after a crash each row comes once.

    Take a checkpoint at sampled steps, go on, crash, restore with another number of readers.
    """
    _need_all(subject)
    chance = subject.random("crash")
    steps = _steps(subject)
    moments = list(range(steps + 1)) if steps < _MOST_KILLS else sorted(chance.sample(range(steps + 1), _MOST_KILLS))
    for moment in moments:
        cut = _checkpoint_at(subject, moment, further=chance.randrange(4))
        with _restored(subject, chance.randint(1, 3), cut) as rig:
            _finish(rig, subject)
            _compare(
                rig, subject, f"with a checkpoint at step {moment} of about {steps}, a crash, and a restore from it"
            )
        subject.need_time()


@contextmanager
def _restored(subject: Subject, readers: int, cut: Cut) -> Iterator[Rig]:
    """Go on from a checkpoint; a split given out twice is then one that was found again."""
    try:
        with Rig(subject, readers, cut=cut) as rig:
            yield rig
    except ContractError as error:
        if error.rule != "SPL-1":
            raise
        raise Broken(
            f"after a restore {error.message}",
            "take back in restore_state() what snapshot_state() gave, and discover nothing that is known",
            rule="ENU-6",
        ) from error


def _checkpoint_at(subject: Subject, moment: int, *, further: int) -> Cut:
    with Rig(subject, _READERS) as rig:
        rig.run(lambda: rig.steps >= moment or _done(rig, subject))
        cut = rig.checkpoint(complete=not subject.live)
        for _ in range(further):
            rig.step()
        return cut


def _need_all(subject: Subject) -> None:
    subject.need_time()
    if subject.blocked:
        raise Skip(subject.blocked)
    if not subject.traces:
        raise NotApplicable("the source has no split")
    if subject.whole:
        return
    with subject.enumerator() as enumerator:
        if not isinstance(enumerator, DiscoveryEnumerator):
            raise Skip(
                "the input is large, and a SplitEnumerator of the source's own assigns all of it", "check a smaller one"
            )


def _steps(subject: Subject) -> int:
    """Return about how many steps a run has: a message to each reader, each record batch, each end."""
    most = max(1, subject.coordinated()[1].max_rows_per_batch)
    return _READERS + sum(len(rows) // most + 2 for rows in subject.everything.values())


def _done(rig: Rig, subject: Subject) -> bool:
    if subject.source.bounded:
        return rig.everything_told()
    return rig.caught_up({split_id: len(rows) for split_id, rows in subject.everything.items()})


def _finish(rig: Rig, subject: Subject) -> None:
    rig.run(lambda: _done(rig, subject))


def _compare(rig: Rig, subject: Subject, how: str) -> None:
    for split_id, rows in subject.everything.items():
        subject.compare(split_id, rig.rows.get(split_id, []), rows, how, _ADVICE, open_ended=not subject.source.bounded)


_ADVICE = (
    "make splits that come back assignable again, at the position they carry; snapshot what is not assigned; restore it"
)
