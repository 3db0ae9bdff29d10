# SPDX-License-Identifier: Apache-2.0
"""The offset of a micro-batch: complete, canonical, and refused by name if it is not ours."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.microbatch.offset import (
    BEFORE_FIRST,
    Offset,
    Planned,
    UnknownEnd,
    canonical,
    dump_offset,
    load_offset,
)
from forebay.framework.microbatch.offset_codec import FinishedSplits, InlineOffsetCodec
from forebay.framework.source import Source
from forebay.framework.split import Split


class Rich(Split):
    """A split with fields of its own."""

    index: int = 0
    parent: str | None = None
    group: str | None = "usual"
    place: tuple[str, ...] = ()


class Renamed(Split):
    """A split whose fields were renamed in version 2."""

    version = 2
    region: str = ""

    @classmethod
    def upgrade(cls, version, fields):
        return {("region" if name == "area" else name): value for name, value in fields.items()}


class Keyed(Source):
    """The source of the offsets."""

    name = "keyed"
    split_class = Rich

    def schema(self):
        raise NotImplementedError

    def create_enumerator(self, context):
        raise NotImplementedError

    def create_split_reader(self, context):
        raise NotImplementedError


POSITIONS = st.recursive(st.integers() | st.text(), lambda parts: st.lists(parts, max_size=3).map(tuple), max_leaves=4)
IDS = st.text(min_size=1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(), parts, max_size=3),
    max_leaves=5,
)


@st.composite
def plans(draw, split_id):
    split = Rich(
        split_id,
        draw(st.none() | POSITIONS),
        draw(st.none() | POSITIONS),
        index=draw(st.integers()),
        parent=draw(st.none() | st.text()),
        group=draw(st.none() | st.text()),
        place=tuple(draw(st.lists(st.text(), max_size=2))),
    )
    to = draw(POSITIONS | st.sampled_from([UnknownEnd.WHOLE, UnknownEnd.NEGOTIATED, split.position, split.end]))
    if to is None and split.position is not None:
        to = split.position
    return Planned(split, to)


@st.composite
def offsets(draw):
    ids = draw(st.lists(IDS, unique=True, max_size=4))
    return Offset(
        "keyed",
        draw(st.integers(0, 1 << 40)),
        draw(st.from_regex(r"[0-9a-f]{12}", fullmatch=True)),
        [draw(plans(split_id)) for split_id in ids],
        draw(JSON),
        draw(st.dictionaries(st.text(), st.text(), max_size=3)),
        draw(st.text()),
        draw(st.text()),
    )


def through_json(data):
    return json.loads(json.dumps(data))


def example(*splits, **changes):
    data = dump_offset(Offset("keyed", 3, "q", list(splits) or [Planned(Rich("a", 1), 5)]))
    return {**through_json(data), **changes}


@given(offsets())
def test_s1_an_offset_survives_json(offset):
    """S1: the offset has everything that a planner continues from, including tuples and fields."""
    back = load_offset(through_json(dump_offset(offset)), "keyed", Rich)
    # What is empty in an offset is not in it.
    wanted = offset if offset.enumerator else Offset(**{**vars(offset), "enumerator": None})
    assert back == wanted


@pytest.mark.parametrize("end", [UnknownEnd.WHOLE, UnknownEnd.NEGOTIATED])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_s1_a_split_with_an_unknown_end_may_start_at_any_number(start, end):
    """S1: the ends are stored as true and false, which Python takes for 1 and 0."""
    offset = Offset("keyed", 3, "q", [Planned(Rich("a", start), end)])
    assert load_offset(through_json(dump_offset(offset)), "keyed", Rich).splits == offset.splits


@given(offsets())
def test_an_offset_is_canonical(offset):
    """The same offset is the same text: Spark compares texts."""
    text = canonical(dump_offset(offset))
    assert canonical(dump_offset(load_offset(json.loads(text), "keyed", Rich))) == text
    written = InlineOffsetCodec(Keyed()).write(offset, FinishedSplits(Rich))
    again = InlineOffsetCodec(Keyed()).write(
        InlineOffsetCodec(Keyed()).read(through_json(written)), FinishedSplits(Rich)
    )
    assert json.dumps(again) == json.dumps(written), "as Spark's Python side writes it: in the order of the keys"


@given(offsets(), st.lists(IDS, unique=True, max_size=300))
def test_a_codec_reads_what_it_wrote(offset, ended):
    """Also if its lists are compressed."""
    done = FinishedSplits(Rich)
    done.add(Rich(split_id, index=7, place=("x" * 20, split_id)) for split_id in ended)
    data = through_json(InlineOffsetCodec(Keyed()).write(offset, done))
    offset_codec = InlineOffsetCodec(Keyed())
    assert [one.split for one in offset_codec.read(data).splits] == [one.split for one in offset.splits]
    back = offset_codec.read_done(data)
    assert set(back) == set(ended)
    assert all(back[split_id] == done[split_id] for split_id in ended)


def test_from_is_left_out_where_nothing_is_read_and_fields_where_the_id_says_all():
    data = dump_offset(
        Offset("keyed", 0, "q", [Planned(Split("a", 7), 7), Planned(Split("b"), 9), Planned(Split("c"), None)])
    )
    assert data["splits"] == [["a", 7], ["b", 9, None], ["c", None]]


def test_unknown_ends_differ_from_positions():
    planned = [
        Planned(Split("a", 0), UnknownEnd.WHOLE),
        Planned(Split("b", (1, "x")), UnknownEnd.NEGOTIATED),
        Planned(Split("c", 0), 1),
    ]
    data = dump_offset(Offset("keyed", 0, "q", planned))
    assert data["splits"] == [["a", True, 0], ["b", False, [1, "x"]], ["c", 1, 0]]
    assert load_offset(through_json(data), "keyed", Split).splits == planned


def test_the_offset_before_the_first_is_always_the_same():
    assert dump_offset(Offset("keyed")) == {"v": 1, "source": "keyed", "n": BEFORE_FIRST}
    assert load_offset(dump_offset(Offset("keyed")), "keyed", Split) == Offset("keyed")


def test_a_none_that_is_not_the_default_is_kept():
    class Linked(Split):
        parent: str | None
        group: str | None = "usual"

    planned = Planned(Linked("a", 1, parent=None, group=None), 5)
    data = through_json(dump_offset(Offset("keyed", 0, "q", [planned])))
    assert load_offset(data, "keyed", Linked).splits == [planned]


def test_splits_of_an_older_version_are_brought_along():
    class Old(Split):
        area: str = ""

    data = through_json(dump_offset(Offset("keyed", 0, "q", [Planned(Old("a", 1, 9, area="north"), 4)])))
    assert load_offset(data, "keyed", Renamed).splits == [Planned(Renamed("a", 1, 9, region="north"), 4)]
    data = through_json(dump_offset(Offset("keyed", 0, "q", [Planned(Renamed("a", 1, 9, region="north"), 4)])))
    assert load_offset(data, "keyed", Renamed).splits == [Planned(Renamed("a", 1, 9, region="north"), 4)]


def test_splits_of_a_newer_version_are_refused():
    data = through_json(dump_offset(Offset("keyed", 0, "q", [Planned(Renamed("a", 1), 4)])))
    with pytest.raises(ContractError, match="reads only versions up to 1") as caught:
        load_offset(data, "keyed", Split)
    assert (caught.value.rule, caught.value.split) == ("SER-1", "a")


def test_fields_that_the_connector_knows_no_more_are_its_own_affair():
    with pytest.raises(ContractError, match="do not fit Rich") as caught:
        load_offset(example(splits=[["a", 5, 1, {"nobody": 1}]]), "keyed", Rich)
    assert (caught.value.rule, caught.value.source) == ("SER-1", "keyed")


def refused(data):
    offset_codec = InlineOffsetCodec(Keyed())
    with pytest.raises(ConfigurationError) as caught:
        offset_codec.read(data)
    assert (caught.value.option, caught.value.source) == ("checkpointLocation", "keyed")
    assert caught.value.advice
    return caught.value.message


@pytest.mark.parametrize("data", [None, 5, "text", [1], {}, {"topic": {"0": 12}}, {"found": 1}])
def test_s1_the_offset_of_another_kind_of_source_is_refused(data):
    """S1: foreign offsets of any form are refused."""
    assert "not written by forebay" in refused(data)


def test_s1_the_offset_of_another_source_is_refused_by_name():
    """S1: the offset names its source."""
    assert refused(example(source="other")).startswith("the checkpoint was written by the source 'other', not by ")


@pytest.mark.parametrize("version", [3, 99, "2", 1.5, None])
def test_s1_the_offset_of_a_newer_release_is_refused_by_name(version):
    """S1: an unknown version is refused."""
    message = refused(example(v=version, forebay="9.9", splits={"new": "form"}, done={"z": "another code"}))
    assert "newer forebay (9.9)" in message


@pytest.mark.parametrize("version", [0, -1, True])
def test_a_form_that_never_was_is_damage(version):
    assert "is damaged" in refused(example(v=version))


@pytest.mark.parametrize(
    "changes",
    [
        {"n": "3"},
        {"n": True},
        {"n": -2},
        {"n": 1.0},
        {"n": None},
        {"id": None},
        {"id": 7},
        {"splits": None},
        {"splits": {"a": 1}},
        {"splits": "ab"},
        {"splits": ["ab"]},
        {"splits": [[]]},
        {"splits": [["a"]]},
        {"splits": [[7, 1]]},
        {"splits": [["", 1]]},
        {"splits": [["a", 1.5]]},
        {"splits": [["a", 5, 1.5]]},
        {"splits": [["a", 5, True]]},
        {"splits": [["a", True]]},
        {"splits": [["a", {"x": 1}]]},
        {"splits": [["a", 5, 1, {}, {}]]},
        {"splits": [["a", 5, 1, 2]]},
        {"splits": [["a", 5, 5]]},
        {"splits": [["a", 5], ["a", 6]]},
        {"splits": {"z": "damaged"}},
        {"splits": {"z": 5}},
        {"options": {"a": 1}},
        {"options": ["a"]},
        {"schema": 5},
    ],
)
def test_s1_a_damaged_offset_is_refused_by_name(changes):
    """S1: nothing is guessed from a damaged offset."""
    assert "the offset in the checkpoint is damaged" in refused(example(**changes))


@pytest.mark.parametrize("missing", ["n", "id", "splits"])
def test_an_offset_without_a_part_is_refused_by_name(missing):
    data = example()
    del data[missing]
    assert "the offset in the checkpoint is damaged" in refused(data)


@pytest.mark.parametrize("done", ["ab", {"a": 1}, [1], [[]], [["a", 5]], [[5]], [["a", {}, 1]], {"z": "x"}])
def test_a_damaged_memory_is_refused_by_name(done):
    """As an empty list, it would let everything be read again."""
    with pytest.raises(ConfigurationError, match="is damaged"):
        InlineOffsetCodec(Keyed()).read_done(example(done=done))


@given(st.recursive(JSON, lambda parts: st.dictionaries(st.sampled_from(list(example())), parts), max_leaves=8))
def test_whatever_is_in_a_checkpoint_is_read_or_refused_by_name(data):
    """Any other error would not point to the checkpoint."""
    for one in [data, {**example(), **data} if isinstance(data, dict) else example(splits=data)]:
        told = []
        try:
            InlineOffsetCodec(Keyed()).read(one)
        except (ConfigurationError, ContractError) as error:
            told = [error.option, error.rule]
        assert told in ([], ["checkpointLocation", None], [None, "SER-1"])


class Paired(Split):
    """A position is (segment, record) since version 2, and was a record before."""

    version = 2

    @classmethod
    def upgrade(cls, version, fields):
        return {**fields, "position": None if fields.get("position") is None else (0, fields["position"])}


def test_ser1_an_upgrade_converts_the_position_to_which_a_micro_batch_reads_too():
    """SER-1: the next micro-batch begins there."""
    stored = dump_offset(Offset("keyed", 3, "q", [Planned(Split("a", 4), 9), Planned(Split("b", 7), 7)]))
    loaded = load_offset(through_json(stored), "keyed", Paired)
    assert [(one.split.position, one.to) for one in loaded.splits] == [((0, 4), (0, 9)), ((0, 7), (0, 7))]
