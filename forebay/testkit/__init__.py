# SPDX-License-Identifier: Apache-2.0
"""For authors of sources: conformance checks (`check`, `SourceContract`, `check_on_spark`) and fault proxies."""

from __future__ import annotations

from forebay.testkit.conformance import check
from forebay.testkit.contract import SourceContract
from forebay.testkit.on_spark import check_on_spark
from forebay.testkit.outcomes import ConformanceError, ConformanceWarning, NotProvenWarning, Report, Result
from forebay.testkit.proxies import Fault, FaultProxy, TcpProxy

__all__ = [
    "ConformanceError",
    "ConformanceWarning",
    "Fault",
    "FaultProxy",
    "NotProvenWarning",
    "Report",
    "Result",
    "SourceContract",
    "TcpProxy",
    "check",
    "check_on_spark",
]
