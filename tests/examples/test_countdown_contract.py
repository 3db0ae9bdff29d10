# SPDX-License-Identifier: Apache-2.0
"""The smallest connector keeps the contract."""

from __future__ import annotations

from countdown import Countdown  # see conftest.py

from forebay.testkit import SourceContract


class TestCountdown(SourceContract):
    most_splits = 1
    start = 0

    def source(self):
        return Countdown(start=self.start)

    def add_split(self):
        return "all"

    def write(self, split_id, n):
        self.start = n
        return [{"n": n - i} for i in range(n)]
