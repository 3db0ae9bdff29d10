# SPDX-License-Identifier: Apache-2.0
"""For authors of sources: the conformance kit (`check`, `SourceContract`), and a proxy that makes requests fail."""

from __future__ import annotations

from forebay.testkit.conformance import check
from forebay.testkit.contract import SourceContract
from forebay.testkit.outcomes import ConformanceError, ConformanceWarning, NotProvenWarning, Report, Result
from forebay.testkit.servers.fault_proxy import FaultProxy
from forebay.testkit.servers.fault_rules import Fault

__all__ = [
    "ConformanceError",
    "ConformanceWarning",
    "Fault",
    "FaultProxy",
    "NotProvenWarning",
    "Report",
    "Result",
    "SourceContract",
    "check",
]
