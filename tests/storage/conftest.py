# SPDX-License-Identifier: Apache-2.0
"""What the tests of storage share: small trees of files, and a real Spark to compare with."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

Tree = Callable[[Mapping[str, str]], str]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Makes a directory of files, given as {relative path: text}, and returns its path."""

    def make(files: Mapping[str, str]) -> str:
        root = tmp_path / uuid.uuid4().hex[:8]
        root.mkdir()
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(root)

    return make


@pytest.fixture(scope="session")
def spark() -> Any:
    """A local Spark, shared by the comparisons."""
    sql = import_module("pyspark.sql")
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    session = (
        sql.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


@pytest.fixture
def memory() -> Iterator[Callable[[Mapping[str, bytes]], str]]:
    """Fills fsspec's store in memory, the stand-in for remote ones; returns its URL."""
    fsspec = import_module("fsspec")
    fs = fsspec.filesystem("memory")
    root = f"memory://{uuid.uuid4().hex[:8]}"

    def make(files: Mapping[str, bytes]) -> str:
        for name, data in files.items():
            fs.pipe(f"{root}/{name}", data)
        return root

    yield make
    if fs.exists(root):
        fs.rm(root, recursive=True)
