# SPDX-License-Identifier: Apache-2.0
"""Carrying a source to other processes, and what is said when that fails; without Spark."""

from __future__ import annotations

import traceback

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError
from forebay.framework.simple import SimpleSource
from forebay.options import Secret
from forebay.spark import pickling


class Connection:
    def __init__(self, url):
        self.url = url

    def __reduce__(self):
        raise TypeError(f"cannot pickle {self.url}") from OSError(f"connected to {self.url}")


class Connected(SimpleSource):
    token: Secret

    def check(self):
        object.__setattr__(self, "connection", Connection(f"https://h/?t={self.token.reveal()}"))

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        yield {"n": 1}


def test_a_source_that_cannot_travel_says_what_to_do_and_shows_no_secret():
    source = Connected(token=Secret("tok-abcdef123"))
    with pytest.raises(ConfigurationError, match=r"TypeError: cannot pickle https://h/\?t=\*") as caught:
        pickling.dumps(source, "connected")
    assert caught.value.source == "connected" and "@forebay.cached" in (caught.value.advice or "")
    printed = "".join(traceback.format_exception(caught.value))
    assert "OSError: connected to https://h/?t=***" in printed
    assert "tok-abcdef123" not in printed + repr(caught.value)
