# SPDX-License-Identifier: Apache-2.0
"""The simulator is a package beside its tests: child processes find it as this one does."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _simulator_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "simulator"))
