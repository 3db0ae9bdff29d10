# SPDX-License-Identifier: Apache-2.0
"""Writes numbers to topics of a real broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

Send = Callable[..., None]


@pytest.fixture
def send(kafka) -> Send:
    """Writes numbers to a partition, or one after the other to so many partitions; they are there when it returns."""

    def send(topic: str, values: Sequence[int], partition: int | None = None, spread: int = 1, **each: Any) -> None:
        for number in range(spread):
            kafka.send(topic, values[number::spread], number if partition is None else partition, **each)

    return send
