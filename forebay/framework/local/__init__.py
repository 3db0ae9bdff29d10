# SPDX-License-Identifier: Apache-2.0
"""The in-process host: a whole source runtime in the consumer's thread, without Spark and without Java."""

from __future__ import annotations

from forebay.framework.local.ledger import SplitProgress
from forebay.framework.local.peeking import peek
from forebay.framework.local.running import Run, run

__all__ = ["Run", "SplitProgress", "peek", "run"]
