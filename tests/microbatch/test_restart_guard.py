# SPDX-License-Identifier: Apache-2.0
"""A restart compares the options and the schema that may not change."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError
from forebay.framework.microbatch.committed_state import RestartGuard
from forebay.framework.microbatch.offset import Offset
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.simple import SimpleSource
from forebay.options import option


class Zoned(SimpleSource):
    zone: str | None = option(default="UTC", may_change=False)

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        yield {"n": 1}


def restart_guard(zone):
    return RestartGuard.of(Zoned(zone=zone), HostOptions(), None)


def test_none_in_place_of_another_default_is_compared():
    kept = json.loads(json.dumps(restart_guard(None).options))
    offset = Offset("zoned", 3, options=kept)
    restart_guard(None).check(offset)
    for zone in ("UTC", "CET"):
        with pytest.raises(ConfigurationError, match=rf"zone \(was none, is now {zone}\)"):
            restart_guard(zone).check(offset)
