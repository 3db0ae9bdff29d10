# SPDX-License-Identifier: Apache-2.0
"""The generic checks: each needs a source as it stands, and nothing else."""

from __future__ import annotations

from forebay.testkit.checks.base import Check
from forebay.testkit.checks.coordination import COORDINATION
from forebay.testkit.checks.discovery import ABILITIES, ALONE, ENDS
from forebay.testkit.checks.factory import COPIES, VALUES
from forebay.testkit.checks.fetching import FETCHING
from forebay.testkit.checks.ranges import RANGES
from forebay.testkit.checks.reading import PLAIN, READING

READ: Check = PLAIN[0]
"""The plain read, whose result the checks after it compare with."""

BEFORE_READING: tuple[Check, ...] = (*VALUES, *ALONE)
AFTER_READING: tuple[Check, ...] = (
    *PLAIN[1:],
    *COPIES,
    *ENDS,
    *FETCHING,
    *READING,
    *RANGES,
    *COORDINATION,
    *ABILITIES,
)

ALL: tuple[Check, ...] = (*BEFORE_READING, READ, *AFTER_READING)
"""In the order they run: what others stand on comes first, so the first that fails is nearest to the cause."""

__all__ = ["AFTER_READING", "ALL", "READ", "Check"]
