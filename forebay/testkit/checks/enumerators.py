# SPDX-License-Identifier: Apache-2.0
"""Checks of the enumerator rules (ENU-…) that need no reader."""

from __future__ import annotations

import json
from types import MappingProxyType

from forebay.framework.discovery import DiscoveryEnumerator
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.checks.leaks import Leaks
from forebay.testkit.findings import Broken
from forebay.testkit.harness.guarded_calls import calling
from forebay.testkit.harness.subject import Subject

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
        found = subject.discovered(enumerator, {}, first=True)
    known = MappingProxyType({split.id: split for split in found.splits})
    with subject.discovery() as enumerator:
        with calling("ENU-6", "restore_state()"):
            enumerator.restore_state(json.loads(json.dumps(found.state)))
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
