# SPDX-License-Identifier: Apache-2.0
"""The hybrid source in this process: history first, then live data; each row once, over restarts and rescaling."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import forebay
from forebay import (
    ConfigurationError,
    ContractError,
    Discovered,
    DiscoveryEnumerator,
    FileSource,
    HybridSource,
    KnownSplits,
    RateSource,
    SimpleSource,
    Source,
    Split,
    SplitReader,
    option,
)
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.tasks.read_task import run_task
from forebay.registry import default_registry
from forebay.sources.hybrid import HybridOptions, HybridSplit
from forebay.testkit.scripted import Counting, CountingSplitReader


def rows(run: forebay.Run) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for batch in run for row in batch.to_pylist()]


def text_files(directory: Path, *texts: str) -> FileSource:
    directory.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts):
        (directory / f"{number}.txt").write_text(text)
    return FileSource(path=str(directory), file_format="text")


class Live(Source):
    """An unbounded source that counts: each split has the records from 0 to below `latest`, and may get more."""

    ends: dict[str, int] = option(default_factory=dict)
    start: int = option(default=0)
    name: ClassVar[str] = "live"

    @property
    def bounded(self) -> bool:
        return False

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("split", pa.string()), pa.field("n", pa.int64())])

    def create_enumerator(self, context) -> DiscoveryEnumerator:
        return LiveEnumerator(self)

    def create_split_reader(self, context) -> SplitReader:
        return LiveReader(self)


class LiveEnumerator(DiscoveryEnumerator):
    exact_ends = True

    def __init__(self, source: Live) -> None:
        self.source = source

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        assert isinstance(known, (KnownSplits, dict))
        new = [Split(id=one, position=self.source.start) for one in self.source.ends if one not in known]
        return Discovered([*known.values(), *new], state={"discoveries": 1})

    def latest(self, splits: Sequence[Split]) -> dict[str, int]:
        return {split.id: self.source.ends[split.id] for split in splits}


class LiveReader(CountingSplitReader):
    """Counts up to the present end, then reports that it has caught up."""

    def __init__(self, source: Live) -> None:
        super().__init__(batch_rows=3)
        self.source = source

    def fetch(self):
        found = []
        for split_id, split in self._splits.items():
            end = split.end if split.end is not None else self.source.ends[split_id]
            start, stop = split.position or 0, min((split.position or 0) + 3, end)
            self._splits[split_id] = split.at(stop)
            batch = forebay.testkit.scripted.counting_batch(split_id, start, stop) if stop > start else None
            finished = split.end is not None and stop == split.end
            found.append(forebay.Fetched(split_id, batch, stop, finished=finished, caught_up=stop == end))
        for one in found:
            if one.finished:
                del self._splits[one.split_id]
        return found


def history(**sizes: int) -> Counting:
    return Counting(sizes=sizes)


# ---- the order of the legs


def test_the_history_comes_first_then_the_live_data() -> None:
    source = HybridSource(history(a=5, b=4), Live(ends={"x": 3, "y": 2}))
    found = rows(forebay.run(source, until_caught_up=True))
    assert sorted(found[:9]) == [("a", n) for n in range(5)] + [("b", n) for n in range(4)]
    assert sorted(found[9:]) == [("x", 0), ("x", 1), ("x", 2), ("y", 0), ("y", 1)]


def test_three_sources_are_read_in_their_order() -> None:
    """HYB-1: a source begins when all splits of the one before are finished."""
    source = HybridSource([history(a=3), history(b=3)], Live(ends={"x": 2}))
    assert rows(forebay.run(source, until_caught_up=True)) == [
        *(("a", n) for n in range(3)),
        *(("b", n) for n in range(3)),
        *(("x", n) for n in range(2)),
    ]


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_source_without_splits_is_skipped(empty: int) -> None:
    sizes = [{"a": 2}, {"b": 2}, {"x": 2}]
    sizes[empty] = {}
    source = HybridSource([history(**sizes[0]), history(**sizes[1])], Live(ends=sizes[2]))
    assert rows(forebay.run(source, until_caught_up=True)) == [
        (one, n) for each in sizes for one in each for n in range(2)
    ]


def test_a_bounded_last_source_makes_the_hybrid_bounded() -> None:
    source = HybridSource(history(a=3), history(b=2))
    assert source.bounded
    assert sorted(rows(forebay.run(source))) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]


def test_an_unbounded_source_before_the_last_is_read_up_to_its_end_as_it_begins() -> None:
    source = HybridSource(Live(ends={"o": 4}), Live(ends={"x": 2}))
    found = rows(forebay.run(source, until_caught_up=True))
    assert found == [*(("o", n) for n in range(4)), ("x", 0), ("x", 1)]


def test_the_same_split_id_in_two_sources_is_two_splits() -> None:
    source = HybridSource(history(a=2), Live(ends={"a": 2}))
    assert rows(forebay.run(source, until_caught_up=True)) == [("a", 0), ("a", 1)] * 2


def test_files_then_rows_of_one_schema(tmp_path: Path) -> None:
    files = text_files(tmp_path, "one\ntwo\n", "three\n")
    source = HybridSource(files, text_files(tmp_path / "later", "four\n"))
    assert sorted(rows(forebay.run(source))) == [("four",), ("one",), ("three",), ("two",)]


def test_discovery_interval_0_still_switches() -> None:
    source = HybridSource([history(a=1), history(b=1)], Live(ends={"x": 1}))
    run = forebay.run(source, until_caught_up=True, options=forebay.HostOptions(discovery_interval=0))
    assert rows(run) == [("a", 0), ("b", 0), ("x", 0)]


# ---- checkpoints


@pytest.mark.parametrize("stop", range(1, 12))
@pytest.mark.parametrize("parallelism", [(1, 1), (1, 3), (3, 1)])
def test_each_row_comes_once_if_the_run_is_stopped_and_rescaled_anywhere(
    tmp_path: Path, stop: int, parallelism: tuple[int, int]
) -> None:
    """HYB-2: splits that come back from an earlier source are read before the next source begins."""
    source = HybridSource([Counting(sizes={"a": 3, "b": 2}, batch_rows=1), history(c=2)], Live(ends={"x": 4, "y": 2}))
    before, after = parallelism
    found: list[tuple[object, ...]] = []
    with forebay.run(source, checkpoint=tmp_path, parallelism=before, until_caught_up=True) as run:
        for batch in itertools.islice(run, stop):
            found += [tuple(row.values()) for row in batch.to_pylist()]
            run.ack()
    with forebay.run(source, checkpoint=tmp_path, parallelism=after, until_caught_up=True) as run:
        found += rows(run)
    assert sorted(found) == sorted(
        (one, n) for one, count in {"a": 3, "b": 2, "c": 2, "x": 4, "y": 2}.items() for n in range(count)
    )
    legs = [
        "abcxy".index(str(one)) // 2 if one in ("a", "b") else {"c": 1, "x": 2, "y": 2}[str(one)] for one, _ in found
    ]
    assert legs == sorted(legs)


def test_a_checkpoint_of_other_sources_is_refused(tmp_path: Path) -> None:
    three = HybridSource([history(a=1), history(b=1)], Live(ends={"x": 1}))
    with forebay.run(three, checkpoint=tmp_path, until_caught_up=True) as run:
        rows(run)
    two = HybridSource(history(a=1), Live(ends={"x": 1}))
    with pytest.raises(
        ConfigurationError, match="reads counting, then counting, then live; this hybrid reads counting, then live"
    ):
        rows(forebay.run(two, checkpoint=tmp_path, until_caught_up=True))


# ---- the switch


def later(then: Source, finished: Sequence[Split]) -> Live:
    assert isinstance(then, Live)
    return Live(ends=then.ends, start=max(split.position for split in finished))


def test_the_switch_gets_the_finished_splits_and_positions_the_last_source() -> None:
    """HYB-1: the last source may be made from the end of the one before."""
    source = HybridSource(history(a=2, b=4), Live(ends={"x": 6}), switch=later)
    assert rows(forebay.run(source, until_caught_up=True))[-2:] == [("x", 4), ("x", 5)]


def test_the_switch_is_the_same_after_a_restart(tmp_path: Path) -> None:
    source = HybridSource(history(a=2, b=4), Live(ends={"x": 6}), switch=later)
    with forebay.run(source, checkpoint=tmp_path) as run:
        assert sum(batch.num_rows for batch in itertools.islice(run, 2)) == 6
        run.ack()
    found = rows(forebay.run(source, checkpoint=tmp_path, until_caught_up=True))
    assert found == [("x", 4), ("x", 5)]


class StartOption(SimpleSource):
    """Five numbers and more; its start is an option, which `splits` uses or only `read`."""

    bounded = False
    positions_are_rows = True
    start: int | None = None
    in_splits: bool = True

    def schema(self) -> pa.Schema:
        return pa.schema({"split": pa.string(), "n": pa.int64()})

    def splits(self) -> list[Split]:
        return [Split("all", position=self.start if self.in_splits else None)]

    def latest(self, split: Split) -> int:
        return 6

    def read(self, split: Split) -> Iterator[dict[str, object]]:
        start = split.position if split.position is not None else self.start or 0
        yield from ({"split": "all", "n": n} for n in range(start, split.end))


@pytest.mark.parametrize("start", [None, 0, 4])
def test_hyb1_a_switch_to_another_start_moves_the_splits(start: int | None) -> None:
    source = HybridSource(history(a=2), StartOption(), switch=lambda then, finished: StartOption(start=start))
    expected = [("all", n) for n in range(start or 0, 6)]
    assert rows(forebay.run(source, until_caught_up=True))[2:] == expected


def test_hyb1_a_switch_whose_start_has_no_effect_is_refused() -> None:
    """HYB-1: tasks read with the options of the source that the hybrid got, so all rows would come again."""
    source = HybridSource(
        history(a=2), StartOption(in_splits=False), switch=lambda then, finished: StartOption(start=4, in_splits=False)
    )
    with pytest.raises(ContractError, match="its start would have no effect") as refused:
        rows(forebay.run(source, until_caught_up=True))
    assert "Split(id, position=self.start)" in str(refused.value)


def test_positions_of_the_last_source_are_used_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    source = HybridSource(history(a=2, b=4), Live(ends={"x": 6}), switch=later)
    with forebay.run(source, until_caught_up=True) as run:
        assert len(rows(run)) == 8
        positions = run.positions()
    more = HybridSource(history(a=2, b=4), Live(ends={"x": 8}), switch=later)
    assert rows(forebay.run(more, positions=positions, until_caught_up=True)) == [("x", 6), ("x", 7)]
    assert "match no discovered split" not in caplog.text


def test_a_switch_to_another_kind_of_source_is_refused() -> None:
    source = HybridSource(history(a=1), Live(ends={"x": 6}), switch=lambda then, finished: history(b=1))
    with pytest.raises(ContractError, match=r"switch\(\) returned Counting, not Live"):
        rows(forebay.run(source, until_caught_up=True))


# ---- the schema


class Numbers(forebay.SimpleSource):
    """A bounded source with columns of the given types."""

    types: dict[str, str] = option(default_factory=dict)
    name: ClassVar[str] = "numbers"

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, getattr(pa, kind)()) for name, kind in self.types.items()])

    def read(self, split):
        yield dict.fromkeys(self.types, 1)


def test_types_are_cast_to_the_one_that_loses_nothing() -> None:
    source = HybridSource(Numbers(types={"n": "int64"}), Numbers(types={"n": "int32"}))
    assert source.schema() == pa.schema([pa.field("n", pa.int64())])
    assert rows(forebay.run(source)) == [(1,), (1,)]


def test_columns_that_differ_are_refused_with_a_table() -> None:
    source = HybridSource(Numbers(types={"n": "int64", "a": "int32"}), Numbers(types={"n": "string", "b": "int32"}))
    with pytest.raises(ConfigurationError) as caught:
        forebay.run(source)
    assert str(caught.value).splitlines()[1:5] == [
        "column  numbers  numbers",
        "n       int64    string",
        "b       -        int32",
        "a       int32    -",
    ]


def test_common_columns_are_selected() -> None:
    source = HybridSource(
        Numbers(types={"a": "int32", "n": "int32"}), Numbers(types={"n": "int64", "b": "int32"}), columns=["n"]
    )
    found = forebay.run(source).to_table()
    assert found.schema == pa.schema([pa.field("n", pa.int64())]) and found.num_rows == 2


def test_inferred_schemas_are_kept_by_the_source_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_text("n,t\n1,x\n")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.csv").write_text("n,t\n2.5,y\n")
    files = [
        FileSource(path=str(tmp_path / one), file_format="csv", format_options={"header": True, "inferSchema": True})
        for one in ("a", "b")
    ]
    with pytest.raises(ConfigurationError, match="n +int32 +double"):
        forebay.run(HybridSource(*files))
    assert sorted(rows(forebay.run(HybridSource(*files, columns=["t"])))) == [("x",), ("y",)]


# ---- what is refused


def test_a_hybrid_of_one_source_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a hybrid needs at least two sources"):
        HybridSource([], RateSource())


def test_a_class_in_place_of_an_object_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is not a source object"):
        HybridSource(history(a=1), RateSource)  # type: ignore[arg-type]


def test_a_source_that_assigns_its_splits_itself_is_refused() -> None:
    class Raw(Counting):
        def create_enumerator(self, context):
            return object()

    with pytest.raises(ConfigurationError, match="assigns its splits itself, so it cannot be a part of a hybrid"):
        rows(forebay.run(HybridSource(history(a=1), Raw(sizes={"b": 1}))))


def test_an_unbounded_source_without_known_ends_cannot_come_first() -> None:
    class Endless(Live):
        def create_enumerator(self, context):
            made = LiveEnumerator(self)
            made.latest = lambda splits: {}
            return made

    with pytest.raises(ConfigurationError, match="the next source would never begin"):
        rows(forebay.run(HybridSource(Endless(ends={"o": 1}), Live(ends={"x": 1})), until_caught_up=True))


def test_a_hybrid_is_pickled_with_its_sources() -> None:
    source = HybridSource(history(a=2), Live(ends={"x": 1}), switch=later, columns=["n"])
    again = pickle.loads(pickle.dumps(source))
    assert again == source and again.switch is later and again.legs == source.legs
    again.schema()
    assert again == source and hash(again) == hash(source)


def test_hybrids_of_other_sources_columns_or_switch_differ() -> None:
    first, then = history(a=2), Live(ends={"x": 1})
    source = HybridSource(first, then)
    assert source == HybridSource([first], then)
    for other in (
        HybridSource(history(a=3), then),
        HybridSource(first, Live(ends={"x": 2})),
        HybridSource([first, first], then),
        HybridSource(first, then, columns=["n"]),
        HybridSource(first, then, switch=later),
    ):
        assert other != source


def test_a_split_that_ends_before_its_position_is_not_read() -> None:
    """S4: an end that lags takes no split back, and does not keep the next source from beginning."""
    source = HybridSource(Live(ends={"o": 2}, start=5), Live(ends={"x": 1}))
    assert rows(forebay.run(source, until_caught_up=True)) == [("x", 0)]


# ---- event time, planned as on Spark


def planned(source: HybridSource, **options: object) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each micro-batch."""
    planner = open_stream(source, forebay.HostOptions(**options), parallelism=2)
    found: list[list[tuple[Any, ...]]] = []
    start = planner.initial()
    while len(found) < 12 and (end := dict(planner.latest(start))) != start:
        tasks = planner.tasks(start, end)
        rows = [tuple(row.values()) for task in tasks for part in run_task(task) for row in part.batch.to_pylist()]
        found.append(rows)
        start = end
    planner.close()
    return found


def test_alignment_holds_back_splits_before_and_after_the_switch() -> None:
    skewed = {"num_splits": 2, "rows_per_second": 1.0, "skew": 4.0}
    source = HybridSource(RateSource(rows=20, start_time=0, **skewed), RateSource(start_time=100_000_000, **skewed))
    found = planned(source, alignment_max_drift="5s", max_rows_per_trigger=50)
    times = [[row[0] for row in rows] for rows in found]
    assert max(times[0]) < max(times[1]) < max(times[2]), "both splits would be read to their ends at once"
    late = [
        one for before, after in itertools.pairwise(times) for one in after if one < max(before) - timedelta(seconds=5)
    ]
    assert late == [], "no record comes more than the drift after later ones"


def test_alignment_is_refused_while_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("timestamp,value,split\n1970-01-01T00:00:01Z,1,0\n")
    files = FileSource(path=str(tmp_path), file_format="csv", format_options={"header": True})
    source = HybridSource(files.with_schema(RateSource().schema()), RateSource(start_time=100_000_000))
    with pytest.raises(ConfigurationError, match="cannot be aligned while it is the history"):
        planned(source, alignment_max_drift="5s", event_time_column="timestamp")


# ---- by options


def test_options_with_prefixes_name_the_two_sources(tmp_path: Path) -> None:
    text_files(tmp_path, "one\n")
    assert default_registry.lookup("forebay_hybrid") is HybridOptions
    given = {"first.format": "forebay_files", "first.path": str(tmp_path), "first.fileformat": "text"}
    source = HybridOptions.from_options({**given, "then.format": "forebay_rate", "then.rowspersecond": "7"})
    files, rate = source.legs
    assert isinstance(files, FileSource) and files.path == str(tmp_path)
    assert isinstance(rate, RateSource) and rate.rows_per_second == 7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"first.path": "x", "then.format": "forebay_rate"}, r"the option first\.format is not set"),
        ({"first.format": "forebay_rate"}, r"the option then\.format is not set"),
        (
            {"first.format": "forebay_hybrid", "then.format": "forebay_rate"},
            "forebay_hybrid cannot be a part of a hybrid",
        ),
        ({"first.format": "forebay_fils", "then.format": "forebay_rate"}, "forebay_files"),
        ({"first.format": "forebay_rate", "first.rowPerSecond": "1", "then.format": "forebay_rate"}, "rowsPerSecond"),
    ],
)
def test_options_that_are_wrong_are_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        HybridOptions.from_options(given)


class Halved(Split):
    """Version 2 counts in other units, or has another name for a field."""

    version = 2
    key: str = ""
    converts: ClassVar[bool] = True

    @classmethod
    def upgrade(cls, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        position = fields["position"] // 2 if cls.converts else fields["position"]
        return {"id": fields["id"], "position": position, "end": fields.get("end"), "key": fields.get("name", "")}


class Renamed(Halved):
    converts = False


@pytest.mark.parametrize("kind", [Halved, Renamed])
def test_an_upgrade_in_a_hybrid_may_convert_fields_and_no_positions(kind: type[Split]) -> None:
    """SER-3: the offsets of the hybrid keep the old positions, from which the next micro-batch would begin."""
    live = type("LiveOf2", (Live,), {"split_class": kind})
    mapping = HybridSource(Counting(sizes={"a": 3}), live()).mapping()
    stored = HybridSplit("1/a", 40, leg=1, fields={"v": 1, "name": "k"})
    if kind is Renamed:
        assert mapping.inner(stored) == Renamed("a", 40, key="k")
        return
    with pytest.raises(ContractError, match=r"upgrade\(\) made the position 20 of 40") as raised:
        mapping.inner(stored)
    assert raised.value.split == "1/a"
