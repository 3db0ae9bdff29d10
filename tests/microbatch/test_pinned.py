# SPDX-License-Identifier: Apache-2.0
"""What a streaming query keeps of its options, and compares at a restart."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.offsets.offset import Offset
from forebay.framework.microbatch.restart_guard import RestartGuard
from forebay.framework.simple import SimpleSource
from forebay.options import option


class Zoned(SimpleSource):
    zone: str | None = option(default="UTC", may_change=False)

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        yield {"n": 1}


def pinned(zone):
    return RestartGuard.of(Zoned(zone=zone), HostOptions(), None)


def test_none_in_place_of_another_default_is_pinned():
    kept = json.loads(json.dumps(pinned(None).options))
    offset = Offset("zoned", 3, options=kept)
    pinned(None).check(offset)
    for zone in ("UTC", "CET"):
        with pytest.raises(ConfigurationError, match=rf"zone \(was none, is now {zone}\)"):
            pinned(zone).check(offset)
