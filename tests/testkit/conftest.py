# SPDX-License-Identifier: Apache-2.0
"""What several tests of the kit need."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.testkit.checks import readers as processes
from forebay.testkit.outcomes import NotApplicable


@pytest.fixture
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the check that reads in two new processes: their start takes longer than all other checks."""

    def left_out(source: Source, splits: Sequence[Split], seconds: float) -> None:
        raise NotApplicable("left out by a test")

    monkeypatch.setattr(processes, "read_elsewhere", left_out)
