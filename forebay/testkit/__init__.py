# SPDX-License-Identifier: Apache-2.0
"""For authors and tests: the conformance kit (`check`, `SourceContract`), scripted sources."""

from __future__ import annotations

from forebay.testkit.conformance import check
from forebay.testkit.contract import SourceContract
from forebay.testkit.outcomes import ConformanceError, NotProvenWarning, Report, Result

__all__ = ["ConformanceError", "NotProvenWarning", "Report", "Result", "SourceContract", "check"]
