# SPDX-License-Identifier: Apache-2.0
"""For each check of the kit there is a broken connector that it catches and no other check does."""

from __future__ import annotations

import pytest
from kit_connectors.alone import ALONE
from kit_connectors.table import line

from forebay.testkit.checks import ALL


def test_no_check_lacks_its_broken_connector():
    assert set(ALONE) == {each.run.__name__ for each in ALL}


@pytest.mark.soak
@pytest.mark.parametrize("name", ALONE)
def test_a_broken_connector_is_caught_by_its_check_only(name):
    found = line(name)
    assert found.caught_by == (name,)
    assert found.rule in next(each.rules for each in ALL if each.run.__name__ == name) or name == "available"
