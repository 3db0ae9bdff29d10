# SPDX-License-Identifier: Apache-2.0
"""For authors of sources: the conformance kit (`check`, `SourceContract`)."""

from __future__ import annotations

from forebay.testkit.conformance import check
from forebay.testkit.contract import SourceContract
from forebay.testkit.outcomes import ConformanceError, ConformanceWarning, NotProvenWarning, Report, Result

__all__ = [
    "ConformanceError",
    "ConformanceWarning",
    "NotProvenWarning",
    "Report",
    "Result",
    "SourceContract",
    "check",
]
