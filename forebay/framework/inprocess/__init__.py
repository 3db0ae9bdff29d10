# SPDX-License-Identifier: Apache-2.0
"""The in-process host: runs a source in the consumer's thread, without Spark and Java."""

from __future__ import annotations

from forebay.framework.inprocess.deliveries import SplitProgress
from forebay.framework.inprocess.running import Run, peek, run

__all__ = ["Run", "SplitProgress", "peek", "run"]
