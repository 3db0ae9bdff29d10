# SPDX-License-Identifier: Apache-2.0
"""What ended is told of without building what nobody looks at."""

from __future__ import annotations

import pytest

from forebay.framework.microbatch.offsets.finished_splits import DoneSplits, Ended
from forebay.framework.split import Split


class Counted(Split):
    """Counts how often one is built from what was stored."""

    built = 0

    @classmethod
    def from_json(cls, data):
        cls.built += 1
        return super().from_json(data)


def test_what_ended_is_built_when_it_is_looked_at() -> None:
    Counted.built = 0
    done = DoneSplits(Counted, [["a"], ["b"]])
    ended = Ended(done, [Counted("c")])
    done.add([Counted("later")])
    assert len(ended) == 3
    assert Counted.built == 0
    assert [split.id for split in ended] == ["a", "b", "c"]
    assert Counted.built == 2
    assert ended[-1].id == "c"
    assert [split.id for split in ended[1:]] == ["b", "c"]
    with pytest.raises(IndexError):
        ended[3]
