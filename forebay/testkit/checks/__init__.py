# SPDX-License-Identifier: Apache-2.0
"""The generic checks, which need only a source with its present input."""

from __future__ import annotations

from forebay.testkit.checks.base import Check
from forebay.testkit.checks.ends import COMPLETE, ENDS, GROWTH, MOVES
from forebay.testkit.checks.enumerators import COORDINATION, ENUMERATORS, OPTIONAL_METHODS
from forebay.testkit.checks.faults import FAULTS
from forebay.testkit.checks.readers import PROCESSES, RANGES, READ, READERS, REPEATED, SPLIT_READERS
from forebay.testkit.checks.sources import COPIES, FACTORY, IDS, POSITIONS, VALUES

BEFORE_READING: tuple[Check, ...] = (*FACTORY, *IDS, *ENUMERATORS)
AFTER_READING: tuple[Check, ...] = (
    *POSITIONS,
    REPEATED,
    *VALUES,
    *COPIES,
    *ENDS,
    *SPLIT_READERS,
    *READERS,
    *RANGES,
    *COMPLETE,
    *COORDINATION,
    *OPTIONAL_METHODS,
    *GROWTH,
    *PROCESSES,
    *MOVES,
    *FAULTS,
)

ALL: tuple[Check, ...] = (*BEFORE_READING, READ, *AFTER_READING)
"""All generic checks, in the order in which they run. A cause is checked before its effects, so it fails first."""

__all__ = ["AFTER_READING", "ALL", "READ", "Check"]
