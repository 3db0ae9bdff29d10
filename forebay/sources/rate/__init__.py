# SPDX-License-Identifier: Apache-2.0
"""Format `forebay_rate`: made-up rows at a chosen rate, with event times, for demos, tests and benchmarks."""

from __future__ import annotations

from forebay.sources.rate.source import RateSource, RateSplit

__all__ = ["RateSource", "RateSplit"]
