# SPDX-License-Identifier: Apache-2.0
"""The result of `forebay.offsets`."""

from __future__ import annotations

import json
import shutil
from importlib import import_module

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ConfigurationError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.microbatch.end_negotiation import Claim, ClaimChain
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.simple import SimpleSource
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.tasks.read_task import run_task
from forebay.inspection.offsets import offsets
from forebay.retry import RetryPolicy
from forebay.state.local_state_store import LocalStateStore

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1704067200000,"conf":{}}'


class Partition(Split):
    topic: str


class Log(DiscoveryEnumerator):
    def __init__(self, ends):
        self.ends = ends

    def discover(self, known, first):
        return Discovered([Partition(id=one, position=0, topic="t") for one in self.ends])

    def latest(self, splits):
        return {split.id: self.ends[split.id] for split in splits}


class Orders(Source):
    name = "orders"
    split_class = Partition
    bounded = False
    many: int = 0

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def create_enumerator(self, context):
        return Log({f"p{n:04}": 10 + n for n in range(self.many)} or {"eu": 1000, "us": 7})

    def create_split_reader(self, context):
        raise NotImplementedError


class Parts(Orders):
    """Two splits that are read whole, one per micro-batch."""

    name = "parts"
    bounded = True

    def create_enumerator(self, context):
        class Whole(Log):
            in_order = True

            def discover(self, known, first):
                return Discovered([Partition(id=one, topic="t") for one in ("a", "b")])

        return Whole({})


def planned(source, times=1, **options):
    planner = open_stream(source, HostOptions(**options), parallelism=1)
    found = [planner.initial()]
    for _ in range(times):
        found.append(json.loads(json.dumps(dict(planner.latest(found[-1])))))
    return found[1:]


def checkpoint(folder, *batches, committed=0):
    """Write a checkpoint like Spark; each batch is the list of its sources' entries."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
    for number, entries in enumerate(batches):
        lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
        (folder / "offsets" / str(number)).write_text("\n".join(["v1", METADATA, *lines]))
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
    for number in range(committed):
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return str(folder)


def test_a_micro_batch_that_is_done_says_up_to_where_each_split_is_read(tmp_path):
    (first,) = planned(Orders())
    found = offsets(checkpoint(tmp_path, [first], committed=1))
    assert str(found).splitlines() == [
        f"{tmp_path}: micro-batch 0 is done, planned 2024-01-01 00:00:00 UTC",
        "┌────────┬───────┬─────────┬───────────────┬─────┐",
        "│ source │ split │ read to │ being read to │ end │",
        "├────────┼───────┼─────────┼───────────────┼─────┤",
        "│ orders │ eu    │ 1,000   │               │     │",
        "│ orders │ us    │ 7       │               │     │",
        "└────────┴───────┴─────────┴───────────────┴─────┘",
    ]
    assert repr(found) == str(found)
    assert [each.position for each in found.splits] == [1000, 7]


def test_a_position_of_several_parts_is_readable_and_says_the_time(tmp_path):
    class Changes(Orders):
        name = "orders"

        def create_enumerator(self, context):
            return Log({"all": (1_795_690_384_523_463, 10_694)})

        def order_key(self, position):
            return position if isinstance(position, tuple) else (position,)

    (first,) = planned(Changes())
    (split,) = offsets(checkpoint(tmp_path, [first], committed=1)).splits
    assert split.read_to == "(1,795,690,384,523,463 (2026-11-26 10:53:04 UTC if µs); 10,694)"
    assert split.position == (1_795_690_384_523_463, 10_694)


def test_one_that_is_planned_and_not_done_is_told_apart(tmp_path):
    (first,) = planned(Orders())
    found = offsets(checkpoint(tmp_path, [first]))
    assert (found.micro_batch, found.done) == (0, None)
    assert [(each.split, each.read_to, each.position, each.being_read_to) for each in found.splits] == [
        ("eu", "0", 0, "1,000"),
        ("us", "0", 0, "7"),
    ]
    assert "micro-batch 0 is planned and not done; a restart reads it again" in str(found)


def test_splits_that_are_over_are_counted(tmp_path):
    batches = [[each] for each in planned(Parts(), times=2, max_files_per_trigger=1)]
    found = offsets(checkpoint(tmp_path, *batches, committed=2))
    (split,) = found.splits
    assert (split.split, split.read_to, split.position, split.end) == ("b", "its end, done", None, "")
    assert found.notes == ("parts: 2 splits read to the end",)


def test_what_is_not_done_is_not_counted_as_over(tmp_path):
    batches = [[each] for each in planned(Parts(), times=2, max_files_per_trigger=1)]
    found = offsets(checkpoint(tmp_path, *batches, committed=1))
    assert [(each.split, each.read_to, each.being_read_to) for each in found.splits] == [("b", "not begun", "its end")]
    assert found.notes == ("parts: 1 split read to the end",)
    assert found.done == 0


class Tail(SimpleSource):
    """A split with an unknown end."""

    name = "tail"
    bounded = False
    rows: int = 12

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def splits(self):
        return ["a", "b"]

    def read(self, split):
        for n in range(split.position or 0, self.rows if split.id == "a" else 3):
            yield {"n": n}


def agreed(tmp_path, *, read):
    """Plan a micro-batch of it, and read it or not."""
    options = HostOptions(state_location=str(tmp_path / "state"), max_rows_per_batch=5, retries=0)
    planner = open_stream(Tail(), options, parallelism=1)
    start = planner.initial()
    end = json.loads(json.dumps(dict(planner.latest(start))))
    for task in planner.tasks(start, end):
        found = run_task(task)
        if read == "all":
            list(found)
    planner.close()
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    return folder, end


@pytest.mark.parametrize(("read", "a", "b"), [("all", 12, 3), ("none", None, None)])
def test_an_end_that_the_tasks_agreed_on_is_shown_once_it_is_done(tmp_path, read, a, b):
    folder, end = agreed(tmp_path, read=read)
    found = offsets(checkpoint(folder, [end], committed=1))
    shown = [(each.split, each.read_to, each.position, each.being_read_to) for each in found.splits]
    assert shown == [
        ("a", "not begun" if a is None else str(a), a, ""),
        ("b", "not begun" if b is None else "3", b, ""),
    ]
    assert found.notes == ()


def test_one_that_is_being_agreed_on_says_how_far_it_is(tmp_path):
    folder, end = agreed(tmp_path, read="none")
    where = checkpoint(folder, [end])
    assert {each.being_read_to for each in offsets(where).splits} == {"a negotiated end"}
    calls = ConnectorCalls("tail", ThreadRuntime(), retry=RetryPolicy(retries=0), timeout=10)
    chain = ClaimChain(LocalStateStore(str(tmp_path / "state")), calls, end["id"], 0, Split("a"))
    chain.propose(0, Claim(5))
    shown = {each.split: (each.read_to, each.being_read_to) for each in offsets(where).splits}
    assert shown["a"] == ("not begun", "a negotiated end, beyond 5")
    chain.propose(1, Claim(12, last=True))
    shown = {each.split: (each.read_to, each.being_read_to) for each in offsets(where).splits}
    assert shown == {"a": ("not begun", "12"), "b": ("not begun", "a negotiated end")}


def test_claims_that_are_gone_are_a_note(tmp_path):
    folder, end = agreed(tmp_path, read="all")
    shutil.rmtree(tmp_path / "state")
    found = offsets(checkpoint(folder, [end], committed=1))
    assert [(each.split, each.read_to, each.position) for each in found.splits] == [
        ("a", "a negotiated end", None),
        ("b", "a negotiated end", None),
    ]
    assert "the negotiated ends cannot be read" in found.notes[0] and str(tmp_path / "state") in found.notes[0]
    older = {name: value for name, value in end.items() if name != "claims"}
    assert offsets(checkpoint_again(folder, older)).notes == ()


def checkpoint_again(folder, entry):
    (folder / "offsets" / "0").write_text("\n".join(["v1", METADATA, json.dumps(entry)]))
    return str(folder)


def test_compressed_lists_are_read(tmp_path):
    (first,) = planned(Orders(many=300))
    assert isinstance(first["splits"], dict)
    found = offsets(checkpoint(tmp_path, [first], committed=1))
    assert len(found.splits) == 300 and found.splits[7].read_to == "17"


def test_a_plan_below_state_location_is_read_there(tmp_path):
    state = tmp_path / "state"
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    many = Orders(many=20_000)
    (first,) = planned(many, state_location=str(state))
    assert "splits" not in first
    found = offsets(checkpoint(folder, [first], committed=1))
    assert len(found.splits) == 20_000 and found.splits[19_999].read_to == "20,009"
    for path in state.rglob("*"):
        if path.is_file():
            path.unlink()
    gone = offsets(str(folder))
    assert gone.splits == () and "is missing from" in gone.notes[0]


def test_other_sources_are_named_and_two_of_one_name_are_told_apart(tmp_path):
    (first,) = planned(Orders())
    found = offsets(checkpoint(tmp_path, [first, '{"logOffset":3}', "-", first], committed=1))
    assert {each.source for each in found.splits} == {"orders (0)", "orders (3)"}
    assert found.notes == (
        'source (1) is not a source of forebay: {"logOffset":3}',
        "source (2): nothing has been planned yet",
    )
    assert found.others == ('{"logOffset":3}',)


def test_a_damaged_offset_is_a_note(tmp_path):
    (first,) = planned(Orders())
    found = offsets(checkpoint(tmp_path, [{**first, "splits": 3}], committed=1))
    assert found.splits == () and "damaged" in found.notes[0]


def test_an_offset_that_is_nested_too_deeply_is_told(tmp_path):
    (first,) = planned(Orders())
    found = offsets(checkpoint(tmp_path, ["[" * 200_000, first]))
    assert len(found.splits) == 2 and "source (0) is not a source of forebay: [[[" in found.notes[0]


def test_metadata_that_is_nested_too_deeply_is_left_out(tmp_path):
    (first,) = planned(Orders())
    directory = checkpoint(tmp_path, [first])
    (tmp_path / "offsets" / "0").write_text("\n".join(["v1", "[" * 200_000, json.dumps(first)]))
    found = offsets(directory)
    assert found.planned_at is None and len(found.splits) == 2


@pytest.mark.parametrize("name", ["٣", "²", "03", "9" * 20])
def test_files_whose_names_spark_does_not_write_are_left_out(tmp_path, name):
    (first,) = planned(Orders())
    directory = checkpoint(tmp_path, [first], committed=1)
    for folder in ("offsets", "commits"):
        (tmp_path / folder / name).write_text("v1\n{}\n-")
    assert (offsets(directory).micro_batch, offsets(directory).done) == (0, 0)


def test_an_offset_without_end_is_refused(tmp_path):
    (first,) = planned(Orders())
    directory = checkpoint(tmp_path, [first])
    with (tmp_path / "offsets" / "1").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigurationError, match="Spark did not write it") as caught:
        offsets(directory)
    assert caught.value.option == "checkpointLocation"


def test_a_newer_offset_is_a_note(tmp_path):
    found = offsets(checkpoint(tmp_path, [{"v": 99, "source": "orders", "n": 3, "forebay": "9.0"}], committed=1))
    assert "newer forebay (9.0)" in found.notes[0]


def test_before_the_first_micro_batch_there_is_nothing(tmp_path):
    assert "no micro-batch has been planned yet" in str(offsets(checkpoint(tmp_path)))


def test_the_last_micro_batch_counts_by_number_not_by_name(tmp_path):
    (first,) = planned(Orders())
    found = offsets(checkpoint(tmp_path, *[[first]] * 12, committed=11))
    assert (found.micro_batch, found.done) == (11, 10)


def test_names_that_others_chose_cannot_control_the_terminal(tmp_path):
    (first,) = planned(Orders())
    folder = tmp_path / "\x1b[2J\x9b"
    folder.mkdir()
    shown = str(offsets(checkpoint(folder, [first, '{"file":"\x1b]0;owned\x07"}'])))
    assert all(line.isprintable() for line in shown.split("\n"))
    assert "\\x1b[2J\\x9b" in shown and "\\x1b]0;owned\\x07" in shown


def test_html_is_escaped(tmp_path):
    (first,) = planned(Orders())
    shown = offsets(checkpoint(tmp_path, [first, "<b>"]))._repr_html_()
    assert "<table>" in shown and "&lt;b&gt;" in shown and "<b>" not in shown


def test_a_url_is_read_through_fsspec():
    fsspec = import_module("fsspec")
    (first,) = planned(Orders())
    memory = fsspec.filesystem("memory")
    memory.pipe("/checks/one/offsets/0", "\n".join(["v1", METADATA, json.dumps(first)]).encode())
    memory.pipe("/checks/one/commits/0", b"v1\n{}")
    try:
        assert offsets("memory://checks/one/").splits[0].read_to == "1,000"
    finally:
        memory.rm("/checks", recursive=True)


@pytest.mark.parametrize(
    ("text", "match"), [("v2\n{}\n{}", "'v2'"), ("", "supports only 'v1'"), ("\x00\x01", "supports only 'v1'")]
)
def test_an_unknown_format_is_refused(tmp_path, text, match):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text(text)
    with pytest.raises(ConfigurationError, match=match):
        offsets(str(tmp_path))


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="no directory 'offsets'") as caught:
        offsets(str(tmp_path))
    assert caught.value.option == "checkpointLocation"


def test_it_is_at_the_door():
    assert forebay.offsets is offsets
