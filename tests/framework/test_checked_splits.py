# SPDX-License-Identifier: Apache-2.0
"""The check of a discovery that may be lazy: ids are unique, and no split is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from forebay.errors import ContractError
from forebay.framework.coordination.validation import checked_splits
from forebay.framework.discovery import Discovered
from forebay.framework.split import Split
from forebay.sources.rate import RateSource

SOURCE = RateSource()


class Lazy(Sequence[Split]):
    """Splits that are made at each access; the last one repeats an id, if that is wanted."""

    def __init__(self, count: int, repeated: int | None = None) -> None:
        self.ids = [str(number) for number in range(count)]
        if repeated is not None:
            self.ids[-1] = str(repeated)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        return Split(self.ids[index])


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_a_lazy_sequence_stays_as_it_is(count: int) -> None:
    splits = Lazy(count)
    assert checked_splits(SOURCE, Discovered(splits)) is splits


@pytest.mark.parametrize("repeated", [0, 17, 998])
def test_spl1_a_repeated_id_is_refused_by_name(repeated: int) -> None:
    with pytest.raises(ContractError, match=f"two splits have the id '{repeated}'") as caught:
        checked_splits(SOURCE, Discovered(Lazy(1000, repeated)))
    assert caught.value.rule == "SPL-1"


def test_ids_of_the_same_hash_are_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.hash", lambda _: 7)
    found = checked_splits(SOURCE, Discovered(Lazy(10)))
    monkeypatch.undo()
    assert [split.id for split in found] == [str(number) for number in range(10)]


def test_what_can_be_iterated_only_once_is_read_once() -> None:
    def generated() -> Iterator[Split]:
        yield from Lazy(3)

    splits: Any = generated()
    assert [split.id for split in checked_splits(SOURCE, Discovered(splits))] == ["0", "1", "2"]


def test_what_is_no_split_is_refused() -> None:
    wrong: Any = [Split("a"), "b"]
    with pytest.raises(ContractError, match="discover\\(\\) returned 'b', which is not a Split"):
        checked_splits(SOURCE, Discovered(wrong))
