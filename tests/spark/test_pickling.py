# SPDX-License-Identifier: Apache-2.0
"""Pickling of sources for other processes, and its errors; without Spark."""

from __future__ import annotations

import importlib
import sys
import traceback

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError, ForebayError
from forebay.framework.inprocess import run
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.simple import SimpleSource
from forebay.options import Secret
from forebay.spark import processes


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
        processes.dumps(source, "connected")
    assert caught.value.source == "connected" and "@forebay.cached" in (caught.value.advice or "")
    printed = "".join(traceback.format_exception(caught.value))
    assert "OSError: connected to https://h/?t=***" in printed
    assert "tok-abcdef123" not in printed + repr(caught.value)


LAZY = """
import pyarrow as pa
import forebay

class Lazy(forebay.SimpleSource):
    def schema(self):
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        from .helper import rows
        yield from rows()
"""


def test_an_import_inside_a_function_of_a_module_that_travels_says_where_it_belongs(tmp_path, monkeypatch):
    package = tmp_path / "lazy_shop"
    package.mkdir()
    for name, text in {"__init__": "", "helper": "def rows(): return [{'n': 1}]", "source": LAZY}.items():
        (package / f"{name}.py").write_text(text)
    with monkeypatch.context() as here:
        here.syspath_prepend(str(tmp_path))
        payload = processes.dumps(importlib.import_module("lazy_shop.source").Lazy(), "lazy")
    for name in [name for name in sys.modules if name.partition(".")[0] == "lazy_shop"]:
        del sys.modules[name]
    with pytest.raises(ForebayError, match="No module named 'lazy_shop'") as caught:
        run(processes.loads(payload, "lazy"), options=HostOptions(retries=0)).to_table()
    assert "at the top of the source's module" in (caught.value.advice or "")


def test_a_missing_module_at_unpickling_is_an_error_with_advice():
    with pytest.raises(ConfigurationError, match="no_such_module_here") as caught:
        processes.loads(b"cno_such_module_here\nSource\n.", "lazy")
    assert "spark.addArtifacts" in (caught.value.advice or "")
