# SPDX-License-Identifier: Apache-2.0
"""For each check of the kit there is a broken connector that it catches and no other check does."""

from __future__ import annotations

import pytest
from kit_connectors.alone import ALONE
from kit_connectors.table import line, line_of_test
from kit_connectors.written import WRITTEN
from kit_connectors.written import test_names as names

from forebay.testkit.checks import ALL


def test_no_check_lacks_its_broken_connector():
    assert set(ALONE) == {each.run.__name__ for each in ALL}
    assert set(WRITTEN) == set(names()) - {each.test_name for each in ALL}


@pytest.mark.soak
@pytest.mark.parametrize("name", ALONE)
def test_a_broken_connector_is_caught_by_its_check_only(name):
    found = line(name)
    assert found.caught_by == (name,)
    assert found.rule in next(each.rules for each in ALL if each.run.__name__ == name) or name == "available"


@pytest.mark.soak
@pytest.mark.parametrize("name", WRITTEN)
def test_a_broken_connector_is_caught_by_its_test_only(name):
    assert line_of_test(name).caught_by == (name,)
