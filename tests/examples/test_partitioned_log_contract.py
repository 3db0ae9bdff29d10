# SPDX-License-Identifier: Apache-2.0
"""The log in a directory keeps the contract."""

from __future__ import annotations

import pytest
from partitioned_log import PartitionedLog  # see conftest.py

from forebay.testkit import SourceContract


class TestPartitionedLog(SourceContract):
    @pytest.fixture(autouse=True)
    def directory(self, tmp_path):
        self.root = tmp_path

    def source(self):
        return PartitionedLog(directory=str(self.root))

    def add_split(self):
        name = str(len(list(self.root.iterdir())))
        (self.root / f"{name}.log").touch()
        return name

    def write(self, split_id, n):
        with (self.root / f"{split_id}.log").open("ab") as log:
            starts = [log.tell() + 8 * i for i in range(n)]
            log.writelines(b"line %02d\n" % i for i in range(n))
        return [{"partition": split_id, "offset": at, "line": f"line {i:02d}"} for i, at in enumerate(starts)]
