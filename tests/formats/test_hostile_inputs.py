# SPDX-License-Identifier: Apache-2.0
"""Hostile inputs take time in proportion to their size; `benchmarks/hostile_inputs.py` prints how much.

Time that grows with the square of the size shows as a test that hangs: each of these took minutes before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError, DataError
from forebay.formats.csv.format import CsvFormat
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.read import names_of
from forebay.formats.csv.univocity import CsvTokenizer, ValueText
from forebay.formats.json import inference as kinds
from forebay.formats.json.format import JsonFormat
from forebay.formats.json.options import JsonOptions
from forebay.formats.values.numbers import parse_int

Files = Callable[..., Any]

LIMIT = pytest.mark.timeout(120)
MB = 1_000_000
# Characters that take four bytes in memory: copying them takes longest, going through them is as quick as ever.
LINE = "\U0001f600" * 12 + "\n"
LINES = LINE * (8 * MB // len(LINE.encode()))


def csv_rows(memory_file: Files, text: str, kind: str, **options: Any) -> list[tuple[Any, ...]]:
    schema = pa.schema([("a", {"string": pa.string(), "int": pa.int32(), "double": pa.float64()}[kind])])
    found = CsvFormat(CsvOptions(**options)).read(memory_file(text.encode()), schema)
    return [value for batch, _ in found for value in batch.column(0).to_pylist()]


CSV: dict[str, tuple[str, str, dict[str, Any], list[Any]]] = {
    "a quoted cell of several blocks": (f'"{LINES}",3\n', "string", {"multi_line": True}, [LINES]),
    "one stray quote before rows": (f'"x\n{LINES}', "string", {"multi_line": True}, [f"x\n{LINES}"]),
    "an integer of 4,000,000 digits": ("7" * 4 * MB, "int", {}, [None]),
    "an integer of 4,000,000 zeros and a digit": ("0" * 4 * MB + "7", "int", {}, [7]),
    "1,000,000 digits and a letter": ("7" * MB + "x", "double", {}, [None]),
    "a hexadecimal number without its exponent": ("0x" + "f" * MB, "double", {}, [None]),
    "blank lines of carriage returns before a header": ("\r" * 4 * MB + "a\rv", "string", {"header": True}, ["v"]),
}


@LIMIT
@pytest.mark.parametrize("name", CSV)
def test_hostile_csv_is_read_in_time(memory_file: Files, name: str) -> None:
    text, kind, options, expected = CSV[name]
    found = csv_rows(memory_file, text, kind, **options)
    assert found == expected


def test_rows_with_stray_quotes_copy_each_character_a_few_times() -> None:
    class Counted(str):
        __slots__ = ("copied",)

        def __getitem__(self, key: Any) -> str:
            found = super().__getitem__(key)
            self.copied = getattr(self, "copied", 0) + len(found)
            return found

    text = Counted('"x""y",3\n' * 10_000)
    tokenizer = CsvTokenizer(CsvOptions().rules())
    tokenizer.begin(text, True)
    assert list(iter(tokenizer.next, None)) == [['"x""y"', "3"]] * 10_000
    assert text.copied < 10 * len(text)


@LIMIT
def test_a_header_of_many_columns_is_compared_in_time() -> None:
    tokens = [f"c{number}" for number in range(200_000)] + ["C1", ""]
    names = names_of(tokens, "")
    assert (names[0], names[1], names[-2:]) == ("c0", "c11", ["C1200000", "_c200001"])


@pytest.mark.parametrize("handling", ["STOP_AT_DELIMITER", "STOP_AT_CLOSING_QUOTE", "BACK_TO_DELIMITER"])
@pytest.mark.parametrize(
    ("piece", "inside"),
    [
        ('"x', {"BACK_TO_DELIMITER": "x"}),
        ('"\\', {}),
        ('" x', {}),
        ('\\\\"', {"": '\\"'}),
    ],
)
def test_any_number_of_stray_quotes_in_one_value_is_read(piece: str, inside: dict[str, str], handling: str) -> None:
    """Each one used to be a nested call, and a thousand raised RecursionError."""
    rules = CsvOptions(unescaped_quote_handling=handling).rules()
    few, many = (CsvTokenizer(rules).line(f'"a{piece * count}b",c') for count in (4, 40_004))
    assert few is not None
    assert many is not None
    repeated = inside.get(handling, inside.get("", piece))
    before, after = (few[0] or "").split(repeated * 3, 1)
    assert many == [before + repeated * 40_003 + after, *few[1:]]


def test_digits_are_converted_only_until_the_number_is_out_of_range() -> None:
    class Digits(str):
        __slots__ = ("seen",)

        def __iter__(self) -> Any:
            for seen, char in enumerate(str(self), 1):
                self.seen = seen
                yield char

    digits = Digits("9" * 1000)
    assert parse_int(digits, 64) is None
    assert digits.seen < 25


def test_text_is_copied_once_when_it_is_appended_and_once_when_it_is_taken() -> None:
    value = ValueText()
    value.append("ab")
    value.append("c,d")
    value.prepend('"')
    assert len(value) == 6
    assert list(value.divide(re.compile("[,;]"))) == [('"abc', ",")]
    value.append("e")
    assert list(value.divide(re.compile("[,;]"))) == []
    value.append("f;g;")
    assert list(value.divide(re.compile("[,;]"))) == [("def", ";"), ("g", ";")]
    assert (len(value), value.take()) == (0, "")
    value.append("x")
    assert (value.take(), len(value)) == ("x", 0)


def test_a_malformed_array_that_would_fill_the_corrupt_column_a_thousand_times_is_refused(memory_file: Files) -> None:
    """Spark puts the text of the whole array into each of its rows."""
    data = json.dumps([{"a": "x"}] * 15_000).encode()
    schema = pa.schema([("a", pa.int64()), ("_corrupt_record", pa.string())])
    with pytest.raises(DataError, match="would fill the column '_corrupt_record'") as raised:
        list(JsonFormat(JsonOptions()).read(memory_file(data), schema))
    assert raised.value.option == "columnNameOfCorruptRecord"
    without = JsonFormat(JsonOptions()).read(memory_file(data), schema.remove(1))
    assert sum(batch.num_rows for batch, _ in without) == 15_000


STRINGS = pa.list_(pa.string())
LONG_NAME = "x" * 49_000
JSON: dict[str, tuple[str, pa.DataType, Any]] = {
    "strings of nearly as many bytes as a name may have": (
        json.dumps({"a": [LONG_NAME] * 160}),
        STRINGS,
        [[LONG_NAME] * 160],
    ),
    "such strings in a broken record": (
        json.dumps({"a": [LONG_NAME[:12_000]] * 1300})[:-1] + ',"b":}',
        STRINGS,
        [None],
    ),
}


@pytest.mark.soak
@LIMIT
@pytest.mark.parametrize("name", JSON)
def test_hostile_json_is_read_in_time(memory_file: Files, name: str) -> None:
    text, kind, expected = JSON[name]
    found = JsonFormat(JsonOptions()).read(memory_file(text.encode()), pa.schema([("a", kind)]))
    assert [value for batch, _ in found for value in batch.column(0).to_pylist()] == expected


INFERRED: dict[str, tuple[str, dict[str, Any], int]] = {
    "a new name in each line": ("".join(f'{{"k{number}":1}}\n' for number in range(40_000)), {}, 40_000),
    "a new name in each object of an array": (
        '{"a":[' + ",".join(f'{{"k{number}":1}}' for number in range(40_000)) + "]}",
        {},
        1,
    ),
    "digits and a letter": (json.dumps({"a": "7" * MB + "x"}), {"prefers_decimal": True}, 1),
}


@pytest.mark.soak(but=["a new name in each object of an array"])
@LIMIT
@pytest.mark.parametrize("name", INFERRED)
def test_schemas_of_hostile_json_are_inferred_in_time(memory_file: Files, name: str) -> None:
    text, options, columns = INFERRED[name]
    schema = JsonFormat(JsonOptions(**options)).infer_schema([memory_file(text.encode())])
    assert len(schema) == columns


def test_schemas_are_merged_in_pairs_of_about_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    merge = kinds.merged

    def counted(left: kinds.Kind, right: kinds.Kind) -> kinds.Kind:
        nonlocal taken
        taken += sum(len(kind.fields) for kind in (left, right) if isinstance(kind, kinds.Struct))
        return merge(left, right)

    monkeypatch.setattr(kinds, "merged", counted)
    merging = kinds.Merging()
    for number in range(1024):
        merging.add(kinds.Struct(((f"k{number:04}", kinds.LONG),)))
    assert merging.result() == kinds.Struct(tuple((f"k{number:04}", kinds.LONG) for number in range(1024)))
    assert taken <= 1024 * 12


@pytest.mark.parametrize("before", ['{"a":', "["])
def test_deeper_nesting_than_jackson_takes_is_a_malformed_record_to_inference(memory_file: Files, before: str) -> None:
    fmt = JsonFormat(JsonOptions())
    schema = fmt.infer_schema([memory_file(f'{{"b":1}}\n{before * 5000}\n'.encode())])
    assert schema.names == ["_corrupt_record", "b"]
    value = '{"a":' * 900 + "1" + "}" * 900
    for lines in (f'{{"c":{value}}}\n{{"b":1}}', f'{{"b":1}}\n{{"b":2,"c":{value}}}', f'{{"c":{value}}}\n' * 3):
        with pytest.raises(ConfigurationError, match="column 'c' of .* is nested too deeply") as caught:
            fmt.infer_schema([memory_file(lines.encode())])
        assert "declares 'c' as string" in (caught.value.advice or "")


def test_inference_names_the_file_that_goes_beyond_a_limit(memory_file: Files) -> None:
    files = [memory_file(b"a,b\n1,2\n", "one.csv"), memory_file(b"a,b\n1,2,3\n", "two.csv")]
    for infer in (True, False):
        fmt = CsvFormat(CsvOptions(max_columns=2, infer_schema=infer))
        with pytest.raises(DataError, match=r"two\.csv has a record with more columns than maxColumns") as raised:
            fmt.infer_schema(files if infer else [memory_file(b"1,2,3\n", "two.csv")])
        assert raised.value.option == "maxColumns"
