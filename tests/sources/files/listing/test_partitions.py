# SPDX-License-Identifier: Apache-2.0
"""Partition columns of Hive-style directories, and what contradicts them."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError, unwrap
from forebay.formats.values.dates import UTC, zone
from forebay.sources.files.file_index import list_files
from forebay.sources.files.listing import ListOptions
from forebay.sources.files.partitions import NULL_NAME, infer_type, merge_schema, partition_value, partitions, unescape


def column(*directories: str, **options) -> list[object]:
    found = partitions([f"/t/{name}" for name in directories], ["/t"], **options)
    return [found.schema.field(0).type, *(found.values[f"/t/{name}"][0].as_py() for name in directories)]


def test_each_file_has_the_values_of_its_directories(tree):
    root = tree({"y=2024/m=01/a": "", "y=2023/m=12/b": "", "y=2023/m=__HIVE_DEFAULT_PARTITION__/c": ""})
    index = list_files([root])
    assert index.partition_schema == pa.schema([("y", pa.int32()), ("m", pa.int32())])
    assert index.partition_texts == (("2023", "12"), ("2023", NULL_NAME), ("2024", "01"))


def test_texts_are_converted_to_values_in_another_process(tree):
    index = list_files([tree({"t=2024-01-01 12%3A00%3A00/a": ""})], ListOptions(timezone="+02:00"))
    field = index.partition_schema.field("t")
    texts = pickle.loads(pickle.dumps(index.partition_texts))
    value = partition_value(texts[0][0], field.type, zone("+02:00"), "t")
    assert value.as_py() == dt.datetime(2024, 1, 1, 10, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("directories", "expected"),
    [
        (["a=1", "a=3000000000"], [pa.int64(), 1, 3_000_000_000]),
        (["a=1", "a=1.5"], [pa.float64(), 1.0, 1.5]),
        (["a=3000000000", "a=1.5"], [pa.string(), "3000000000", "1.5"]),
        (["a=1e3", "a=1"], [pa.decimal128(10, 0), Decimal(1000), Decimal(1)]),
        (["a=01", "a=x"], [pa.string(), "01", "x"]),
        (["a=2024-01-01", f"a={NULL_NAME}"], [pa.date32(), dt.date(2024, 1, 1), None]),
        (["a=12:30:00"], [pa.time64("us"), dt.time(12, 30)]),
        ([f"a={NULL_NAME}"], [pa.null(), None]),
        (["a=x=y", "a=%2F%20%3D", "a=two\nlines", "a=😀"], [pa.string(), "x=y", "/ =", "two\nlines", "😀"]),
    ],
)
def test_types_of_columns(directories, expected):
    assert column(*directories) == expected


def test_without_inference_all_is_text():
    assert column("a=1", "a=2024-01-01", type_inference=False) == [pa.string(), "1", "2024-01-01"]


def test_types_of_the_users_schema_win_and_name_the_column():
    found = partitions(["/t/A=01"], ["/t"], types={"a": pa.string(), "other": pa.int32()})
    assert found.schema == pa.schema([("a", pa.string())])
    assert found.values["/t/A=01"][0].as_py() == "01"
    assert column("a=1", "a=300", types={"a": pa.int16()}) == [pa.int16(), 1, 300]


@pytest.mark.parametrize(
    ("type_", "raw"),
    [
        (pa.int8(), "300"),
        (pa.int32(), "x"),
        (pa.decimal128(4, 1), "1.55"),
        (pa.decimal128(4, 1), "12345"),
        (pa.date32(), "2024-02-30"),
        (pa.timestamp("us", tz="UTC"), "x"),
        (pa.bool_(), "yes"),
        (pa.list_(pa.int32()), "1"),
    ],
)
def test_a_value_outside_the_type_is_an_error_not_another_value(type_, raw):
    with pytest.raises(ConfigurationError, match="partition column 'a'"):
        column(f"a={raw}", types={"a": type_})


def test_directories_that_contradict_each_other_are_listed(tree):
    root = tree({"s/a=1/x": "", "r/a=2/y": ""})
    with pytest.raises(ConfigurationError, match="Conflicting directory structures") as caught:
        list_files([root])
    assert f"{root}/s" in str(caught.value) and f"{root}/r" in str(caught.value)
    assert "basePath" in str(caught.value.advice)


def test_columns_that_contradict_each_other_are_listed_with_their_directories(tree):
    root = tree({"a=1/b=2/x": "", "a=2/y": "", "new\nline=3/z": ""})
    with pytest.raises(ConfigurationError, match="Conflicting partition column names") as caught:
        list_files([root])
    text = str(caught.value)
    assert ": a, b" in text and f"{root}/a=2\n" in text and f"{root}/a=1/b=2" in text
    again = unwrap(RuntimeError(f"forebay.errors.ConfigurationError: {text}"))
    assert again is not None and str(again) == text


@pytest.mark.parametrize("names", ["a=1/a=2", "a=1/A=2"])
def test_a_column_that_appears_twice_is_an_error(tree, names):
    with pytest.raises(ConfigurationError, match="appears twice"):
        list_files([tree({f"{names}/x": ""})])


def test_names_that_differ_only_in_case_are_one_column():
    assert partitions(["/t/a=1", "/t/A=2"], ["/t"]).schema.names == ["A"]


@pytest.mark.parametrize(("name", "what"), [("a=", "value after"), ("=1", "column name before")])
def test_half_a_partition_name_is_an_error(tree, name, what):
    with pytest.raises(ConfigurationError, match=f"empty partition {what}"):
        list_files([tree({f"{name}/x": ""})])


def test_files_beside_partition_directories_are_left_out_and_counted(tree):
    root = tree({"x.csv": "", "a=1/y.csv": ""})
    index = list_files([root])
    assert [file.path for file in index.files] == [f"{root}/a=1/y.csv"]
    assert index.left_out == (f"{root}/x.csv",)


def test_base_path_brings_back_the_columns_of_a_chosen_directory(tree):
    root = tree({"a=1/x": "", "a=2/y": ""})
    for path in (f"{root}/a=1", f"{root}/a=1/x", f"{root}/a={{1,7}}"):
        assert len(list_files([path]).partition_schema) == 0
        index = list_files([path], ListOptions(base_path=f"file:{root}/"))
        assert (index.partition_schema.names, index.partition_texts) == (["a"], (("1",),))


@pytest.mark.parametrize(
    ("base", "why"), [("nope", "does not exist"), ("a=1/x", "is not a directory"), ("a=2", "below")]
)
def test_a_wrong_base_path_is_refused(tree, base, why):
    root = tree({"a=1/x": "", "a=2/y": "", "a=22/z": ""})
    with pytest.raises(ConfigurationError, match=why) as caught:
        list_files([f"{root}/a=1", f"{root}/a=22"], ListOptions(base_path=f"{root}/{base}"))
    assert caught.value.option == "basePath"


def test_a_column_in_files_and_directories_is_the_directories_in_the_files_place():
    data = pa.schema([("B", pa.string()), ("v", pa.int64())])
    partition = pa.schema([("a", pa.date32()), ("b", pa.int32())])
    merged = merge_schema(data, partition)
    assert merged == pa.schema([("b", pa.int32()), ("v", pa.int64()), ("a", pa.date32())])


@given(st.text(min_size=1))
def test_every_text_has_a_type_that_takes_it(raw):
    type_ = infer_type(raw, UTC)
    value = partition_value(raw, type_, UTC)
    assert value.is_valid or raw == NULL_NAME
    if type_ == pa.string():
        assert value.as_py() == unescape(raw)


@given(st.lists(st.sampled_from(["1", "3000000000", "1e3", "1.5", "x", "2024-01-01", NULL_NAME]), min_size=1))
def test_the_order_of_directories_does_not_matter(raws):
    directories = [f"a={raw}" for raw in raws]
    assert column(*directories)[0] == column(*reversed(directories))[0]
