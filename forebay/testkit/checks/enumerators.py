# SPDX-License-Identifier: Apache-2.0
"""Checks of the enumerator rules (ENU-…) that need no reader."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType

from forebay.errors import ContractError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.checks.faults import Leaks
from forebay.testkit.harness.calls import Silence, calling
from forebay.testkit.harness.single_thread_host import HostCheckpoint, SingleThreadHost
from forebay.testkit.harness.subject import Subject
from forebay.testkit.outcomes import Broken, NotApplicable, Skip

ENUMERATORS: Checks = []


@check_into(ENUMERATORS)
def state_is_json(subject: Subject) -> None:
    """ENU-5: the state of discovery is JSON."""
    with subject.discovery() as enumerator:
        state = subject.discovered(enumerator, {}, first=True).state
    try:
        same = json.loads(json.dumps(state, allow_nan=False)) == state
    except (TypeError, ValueError) as error:
        raise Broken(f"Discovered.state {state!r:.200} is not JSON: {error}", _JSON) from error
    if not same:
        raise Broken(f"Discovered.state {state!r:.200} is not the same after a round trip through JSON", _JSON)


@check_into(ENUMERATORS)
def discovery_restored(subject: Subject) -> None:
    """ENU-6, SPL-1: after a restart, discovery continues, and finds no known split under a new id."""
    with subject.discovery() as enumerator:
        discovered = subject.discovered(enumerator, {}, first=True)
    known = MappingProxyType({split.id: split for split in discovered.splits})
    with subject.discovery() as enumerator:
        with calling("ENU-6", "restore_state()"):
            enumerator.restore_state(json.loads(json.dumps(discovered.state)))
        for _ in range(2):
            ids = [split.id for split in subject.discovered(enumerator, known, first=False).splits]
            new = sorted(set(ids) - known.keys())
            if len(set(ids)) < len(ids):
                raise Broken(
                    f"a later discovery returned split ids twice: {ids[:10]}", "return each split once", rule="SPL-1"
                )
            if new and subject.exact:
                raise Broken(f"a restored enumerator discovered the new splits {new[:3]} in an unchanged input", _SAME)


@check_into(ENUMERATORS)
def enumerator_closes(subject: Subject) -> None:
    """ENU-9: closing an enumerator leaves no thread and no connection, whether it was used or not."""
    leaks = Leaks(subject.patience)

    def use() -> None:
        with subject.enumerator():
            """Close it unused."""
        with subject.enumerator() as enumerator:
            raw = not isinstance(enumerator, DiscoveryEnumerator)
            if isinstance(enumerator, DiscoveryEnumerator):
                subject.latest(subject.discovered(enumerator, {}, first=True).splits, enumerator)
            leaks.record_open()
        if raw:
            subject.discover()  # starts it, and lets it assign its splits

    leaks.check(
        use,
        "making, using and closing an enumerator",
        "close connections and end threads where they are used, or in close()",
    )


_JSON = "use only None, bool, int, float, str, lists and dicts with text keys"
_SAME = "return the same ids for the same parts, with any restored state"


# -- Checks of the enumerator together with a reader, in a host that kills and restores it (rules ENU-…).


COORDINATION: Checks = []

_MOST_KILLS = 8
_QUIET = 0.3
"""Seconds without an effect after which an enumerator has found everything."""

_ANSWER = 0.1
"""Seconds that an enumerator gets to answer a request."""


@check_into(COORDINATION)
def all_splits_are_assigned(subject: Subject) -> None:
    """ENU-11: every split of an unbounded source is assigned, although the reader requests a split only once."""
    if subject.source.bounded:
        raise NotApplicable("the source is bounded: the reader asks again whenever it has finished a split")
    with subject.enumerator() as enumerator:
        if isinstance(enumerator, DiscoveryEnumerator):
            raise NotApplicable("the framework assigns the splits that the source discovers")
    ids = {split.id for split in subject.discover()}
    with SingleThreadHost(subject) as host:
        silence = Silence(subject.patience / 2)
        while left := sorted(ids - host.assigned):
            before = len(host.assigned)
            host.step()
            if len(host.assigned) > before:
                silence.reset()
            if silence.left < 0:
                subject.blocked = "the enumerator leaves splits unassigned: see ENU-11"
                raise Broken(
                    f"{len(left)} of {len(ids)} splits stayed unassigned: {left[:10]}; a "
                    "reader of an unbounded source requests a split once, and again only after it has finished one",
                    "assign splits without an end before readers request them: call assign_splits() in add_reader() "
                    "and after each discovery, not only in handle_split_request()",
                )


@check_into(COORDINATION)
def idle_readers_end(subject: Subject) -> None:
    """ENU-10, RDR-2: all rows are read, and then the reader ends; so does one that finds no split, after a restart."""
    _need_all(subject)
    with SingleThreadHost(subject) as host:
        _finish(host, subject, "read by a reader that asks for splits")
        checkpoint = host.checkpoint(complete=not subject.live)
    with _restored(subject, checkpoint) as host:
        _finish(host, subject, "with a restore after everything was read")


@check_into(COORDINATION)
def readers_register_late(subject: Subject) -> None:
    """ENU-4: the reader may register after the enumerator has found splits, and again after a failure."""
    _need_all(subject)
    with SingleThreadHost(subject, register=False) as host:
        host.settle(_QUIET)
        host.register()
        host.run(lambda: bool(host.assigned) or host.has_read(subject.everything))
        host.fail()
        host.register()
        _finish(host, subject, "with a reader that registered late, and again after a failure")


@check_into(COORDINATION)
def killed_readers(subject: Subject) -> None:
    """ENU-3: splits of a killed reader are returned and resumed, so that each row comes once."""
    chance = subject.random("kill")
    for number, (moment, when) in enumerate(_moments(subject, chance)):
        with SingleThreadHost(subject) as host:
            _run_to(host, subject, moment)
            in_progress = number % 2 == 0  # every second time, however fast the readers are
            how = (
                f"with the reader killed {'in the middle of a split, ' * in_progress}{when}{' or later' * in_progress}"
            )
            if in_progress:
                host.run(lambda: host.in_progress() or host.has_read(subject.everything))
            checkpoint = chance.choice([None, False, not subject.live])  # a complete checkpoint may commit and clean up
            if checkpoint is not None:
                host.checkpoint(complete=checkpoint)
            host.fail()
            host.register()
            _finish(host, subject, how)
        subject.need_time()


@check_into(COORDINATION)
def dead_requesters_skipped(subject: Subject) -> None:
    """ENU-2: a reader that failed after it requested a split gets no split."""
    _need_all(subject)
    with SingleThreadHost(subject) as host:
        host.fail()
        due = time.monotonic() + _ANSWER
        host.run(lambda: time.monotonic() > due)
        host.register()
        _finish(host, subject, "with a reader that failed after it requested a split")


@check_into(COORDINATION)
def crashes(subject: Subject) -> None:
    """ENU-5, ENU-6: a checkpoint at any step has every split once, so that each row comes once after a crash."""
    chance = subject.random("crash")
    for moment, when in _moments(subject, chance):
        steps_after = chance.randrange(4)
        with SingleThreadHost(subject) as host:
            _run_to(host, subject, moment)
            if subject.everything.keys() <= host.finished:
                continue  # see `idle_readers_end`
            checkpoint = host.checkpoint(complete=not subject.live)
            for _ in range(steps_after):
                host.step()
        with _restored(subject, checkpoint) as host:
            _finish(host, subject, f"with a checkpoint {when}, a crash, and a restore from it")
        subject.need_time()


@check_into(COORDINATION)
def crashes_without_readers(subject: Subject) -> None:
    """ENU-5: a checkpoint without a reader has every split that was found or came back, so that each row comes once."""
    _need_all(subject)
    with subject.enumerator() as enumerator:
        if isinstance(enumerator, DiscoveryEnumerator):
            raise NotApplicable("the framework stores the splits that the source discovers")
    with SingleThreadHost(subject, register=False) as host:
        host.settle(_QUIET)
        checkpoint = host.checkpoint(complete=not subject.live)
    with _restored(subject, checkpoint) as host:
        _finish(host, subject, "with a checkpoint before the reader had started, a crash, and a restore from it")
    with SingleThreadHost(subject) as host:
        _run_to(host, subject, 1)
        host.fail()
        host.settle(_QUIET)
        checkpoint = host.checkpoint(complete=not subject.live)
    with _restored(subject, checkpoint) as host:
        how = "with a checkpoint after the reader had failed and its splits had come back, a crash, and a restore"
        _finish(host, subject, how)


@contextmanager
def _restored(subject: Subject, checkpoint: HostCheckpoint) -> Iterator[SingleThreadHost]:
    """Yield a host that continues from a checkpoint. A split assigned twice means that discovery returned it again."""
    try:
        with SingleThreadHost(subject, restored=checkpoint) as host:
            yield host
    except ContractError as error:
        if error.rule != "SPL-1":
            raise
        raise Broken(
            f"the enumerator broke a rule after restore_state(): {error.message}",
            "restore the state of snapshot_state() in restore_state(), and do not discover known splits again",
            rule="ENU-6",
        ) from error


def _need_all(subject: Subject) -> None:
    """Skip the check if a host cannot read exactly the rows of the plain read."""
    subject.need_time()
    if subject.blocked:
        raise Skip(subject.blocked)
    if not subject.traces:
        raise NotApplicable("the source has no split")
    if not subject.whole:
        with subject.enumerator() as enumerator:
            if not isinstance(enumerator, DiscoveryEnumerator):
                raise Skip(
                    "the input is large, and the source's own SplitEnumerator assigns all of it",
                    "check the source with a smaller input",
                )


def _moments(subject: Subject, chance: random.Random) -> list[tuple[int, str]]:
    """Return some steps at which to interrupt a run, each with its description."""
    _need_all(subject)
    most = max(1, subject.coordinated()[1].max_rows_per_batch)
    # The number of messages to the reader, record batches and ends.
    steps = 1 + sum(len(rows) // most + 2 for rows in subject.everything.values())
    moments = list(range(steps + 1)) if steps < _MOST_KILLS else sorted(chance.sample(range(steps + 1), _MOST_KILLS))
    return [(moment, f"at step {moment} of about {steps}") for moment in moments]


def _run_to(host: SingleThreadHost, subject: Subject, moment: int) -> None:
    """Run the host until a step, or to the end of the input."""
    host.run(lambda: host.steps >= moment or host.has_read(subject.everything))


def _finish(host: SingleThreadHost, subject: Subject, how: str) -> None:
    """Run the host to the end of the input, and compare all rows with the plain read."""
    try:
        host.run(lambda: host.has_read(subject.everything))
    except Broken as stuck:
        raise Broken(f"{how}: {stuck.saw}", stuck.advice, rule=stuck.rule) from stuck
    for split_id, rows in subject.everything.items():
        subject.compare(split_id, host.rows[split_id], rows, how, _ADVICE, open_ended=not subject.source.bounded)


_ADVICE = (
    "make returned splits assignable again, at their position; store unassigned splits in snapshot_state(), and "
    "restore them in restore_state()"
)
