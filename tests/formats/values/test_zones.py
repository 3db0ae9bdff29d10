# SPDX-License-Identifier: Apache-2.0
"""Names of time zones."""

from __future__ import annotations

import pytest

from forebay.errors import ConfigurationError
from forebay.formats.values.dates import session_zone, zone


@pytest.mark.parametrize(
    ("name", "offset"),
    [("Z", 0), ("UTC", 0), ("GMT+1", 3600), ("UT-01:30", -5400), ("+1:00", 3600), ("-0530", -19800),
     ("+18:00", 64800), ("EST", -18000), ("+01:02:03", 3723)],
)  # fmt: skip
def test_zones_have_the_names_of_java(name: str, offset: int) -> None:
    assert zone(name).offset(0) == offset


@pytest.mark.parametrize(
    "name",
    ["", "X", "+19:00", "+18:01", "+1:0:0", "Europe/Nowhere", "../etc/passwd", "europe/berlin ", "+01:60", "posix/UTC",
     "localtime", "Factory"],
)  # fmt: skip
def test_other_names_are_no_zones(name: str) -> None:
    with pytest.raises(ValueError, match=r"zone|offset"):
        zone(name)


@pytest.mark.parametrize("name", ["Mars/Olympus", "../etc/passwd", "+02:60"])
def test_an_unknown_zone_in_an_option_says_what_to_write(name: str) -> None:
    with pytest.raises(ConfigurationError, match="Europe/Paris") as raised:
        session_zone(name)
    assert raised.value.option == "timeZone"
