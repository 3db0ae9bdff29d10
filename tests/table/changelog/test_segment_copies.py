# SPDX-License-Identifier: Apache-2.0
"""Copies of segments of a remote store on the machine of a task."""

from __future__ import annotations

import pyarrow as pa
import pytest

from forebay.errors import FatalError
from forebay.table.changelog.state import segments
from forebay.table.changelog.state.segments import FIXED, StoredSegments


class Remote:
    """A store in memory."""

    location = "s3://bucket/state"

    def __init__(self):
        self.facts = {}

    def get(self, name):
        return self.facts.get(name)

    def put_if_absent(self, name, data):
        return self.facts.setdefault(name, data) is data

    def local_path(self, name):
        return None

    def names(self, prefix):
        return sorted(name for name in self.facts if name.startswith(prefix))

    def delete(self, names):
        for name in names:
            self.facts.pop(name, None)


@pytest.fixture
def remote(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(segments, "_verified", type(segments._verified)())
    return Remote()


ENTRIES = pa.record_batch([[1, 2], [1, 2], [0, 0], [1, 1]], schema=FIXED)


def test_a_damaged_copy_is_replaced_and_a_damaged_original_is_an_error(remote, tmp_path):
    """A copy that was not on the disk yet when the machine lost power is not the end of the query."""
    files = StoredSegments(remote)
    info = files.write("op/00000/", ENTRIES)
    assert files.open(info).batch.equals(ENTRIES)
    (copy,) = tmp_path.rglob("*.arrow")
    copy.write_bytes(b"")
    segments._verified.clear()
    assert files.open(info).batch.equals(ENTRIES)
    copy.write_bytes(b"")
    segments._verified.clear()
    remote.facts[info.name] = remote.facts[info.name][:-1]
    with pytest.raises(FatalError, match="bytes instead of"):
        files.open(info)


def test_copies_of_removed_segments_are_removed(remote, tmp_path):
    files = StoredSegments(remote)
    infos = [files.write("op/00000/", ENTRIES) for _ in range(3)]
    for info in infos:
        files.open(info)
    assert len([*tmp_path.rglob("*.arrow")]) == 3
    files.forget([info.name for info in infos[:2]] + ["op/00000/v000000000001.json"])
    (left,) = tmp_path.rglob("*.arrow")
    assert left.read_bytes() == remote.facts[infos[2].name]
