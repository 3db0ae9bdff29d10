# SPDX-License-Identifier: Apache-2.0
"""Format `forebay_hybrid`: reads history first, then live data, such as files and then Kafka (FLIP-150)."""

from __future__ import annotations

from forebay.sources.hybrid.legs import HybridSplit
from forebay.sources.hybrid.source import HybridOptions, HybridSource

__all__ = ["HybridOptions", "HybridSource", "HybridSplit"]
