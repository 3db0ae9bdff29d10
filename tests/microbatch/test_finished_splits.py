# SPDX-License-Identifier: Apache-2.0
"""Finished splits are reported without building those that are not accessed."""

from __future__ import annotations

import pytest

from forebay.framework.microbatch.offset_codec import EndedSplits, FinishedSplits
from forebay.framework.split import Split


class Counted(Split):
    """Counts how often a split is built from its stored form."""

    built = 0

    @classmethod
    def from_json(cls, data):
        cls.built += 1
        return super().from_json(data)


def test_a_finished_split_is_built_when_it_is_accessed() -> None:
    Counted.built = 0
    done = FinishedSplits(Counted, [["a"], ["b"]])
    ended = EndedSplits(done, [Counted("c")])
    done.add([Counted("later")])
    assert len(ended) == 3
    assert Counted.built == 0
    assert [split.id for split in ended] == ["a", "b", "c"]
    assert Counted.built == 2
    assert ended[-1].id == "c"
    assert [split.id for split in ended[1:]] == ["b", "c"]
    with pytest.raises(IndexError):
        ended[3]
