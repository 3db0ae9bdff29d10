# SPDX-License-Identifier: Apache-2.0
"""Doubled quotes under another escape character: split in blocks, with the rows of the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.read import LineSplitter
from forebay.formats.csv.splitting import Quoting, SafeBlocks
from forebay.formats.csv.univocity import CsvTokenizer

WIDTH = 3
PIECES = st.sampled_from(
    [
        '"',
        '""',
        '"""',
        ",",
        ", ",
        ',"',
        '",',
        '",""',
        '""x',
        "x",
        "yz",
        " ",
        "\t",
        "\\",
        '\\"',
        "#",
        "é",
        "\ufdd0",
        "\r",
    ]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)
# Most fields as writers write them, so that many lines are of the kind that is split in blocks.
QUOTED = st.lists(st.sampled_from(['""', "ab", "c", " ", ",", "\\", "5"]), max_size=6).map(
    lambda parts: '"' + "".join(parts) + '"'
)
FIELDS = st.one_of(QUOTED, QUOTED, st.sampled_from(["", "1", "plain", 'a"b', '""', '" ,"', '","']), TEXTS)
# Rows of another width than the schema's go to the tokenizer anyway.
WIDTHS = st.sampled_from([WIDTH, WIDTH, WIDTH, 1, 2, 4])
LINES = st.lists(
    WIDTHS.flatmap(lambda width: st.lists(FIELDS, min_size=width, max_size=width)).map(",".join), min_size=1, max_size=6
)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"null_value": "ab", "empty_value": "E"},
    {"line_sep": "\n"},
    {"line_sep": "#"},
    {"escape": "'"},
    {"sep": "\t"},
    {"unescaped_quote_handling": "STOP_AT_CLOSING_QUOTE"},
    {"unescaped_quote_handling": "BACK_TO_DELIMITER"},
    {"ignore_trailing_white_space": True},
    {"comment": "c"},
]


def by_tokenizer(options: CsvOptions, lines: Sequence[str]) -> list[tuple[list[str | None], str]]:
    """The tokens of each line that has any, padded or cut to the width, and its text."""
    rules = options.rules()
    rows = []
    for line in lines:
        tokens = CsvTokenizer(rules).line(line) if line.strip("".join(map(chr, range(33)))) else None
        if tokens is not None:
            known = [None if token == rules.null_value else token for token in tokens]
            rows.append(((known + [None] * WIDTH)[:WIDTH], line))
    return rows


@pytest.mark.parametrize("given_options", OPTIONS, ids=str)
@example(lines=['1,2,"a"" b"'])
@example(lines=['1,2,"a"" b', '1,2,"a""b"', 'x,"a""b",', '1,2,"a""b#'])
@example(lines=['"a""\r,b,c', '1,2,"a""\rx"', '1,"a"" \r,x'])
@example(lines=['"a ""b"" c","a\\"b",d', '"a ""b"" c","\ufdd0",d', '"a""",b,c', "\ufdd0,,"])
@given(lines=LINES)
def test_blocks_with_stray_quotes_are_split_as_the_tokenizer_splits_each_line(given_options, lines) -> None:
    options = CsvOptions(**given_options)
    end = options.line_sep or "\n"
    if options.line_sep is None:
        lines = [line.replace("\r", "") for line in lines]
    lines = [part for line in lines for part in line.split(end)]
    tokens = LineSplitter(options, WIDTH, range(WIDTH)).split(bytearray((end.join(lines) + end).encode()))
    found = list(zip(*(column.to_pylist() for column in tokens.columns), strict=True))
    assert [list(row) for row in found] == [row for row, _ in by_tokenizer(options, lines)]
    assert tokens.rows == len(found)
    kept = {number: len(CsvTokenizer(options.rules()).line(line) or []) for number, line in enumerate(tokens.raw())}
    assert list(tokens.malformed) == [number for number, width in kept.items() if width != WIDTH]


CLEAN = [
    b'1,"he said ""yes"" twice",x\n',
    b'1,"first, he said ""yes"", then no",x\n',
    b'1,"""quoted as a whole""",x\n',
    b'1,"5"" pipe, 3"" pipe",x\n',
    b'"","a ""b"" c",""\n',
]


@pytest.mark.parametrize("line", CLEAN)
def test_what_writers_write_is_split_in_blocks(line) -> None:
    options = CsvOptions()
    assert SafeBlocks(options.rules(), newlines_in_quotes=False).quoting(line * 3) is Quoting.STRAY
    assert SafeBlocks(options.rules(), newlines_in_quotes=True).quoting(line * 3) is Quoting.NOT_SAFE


@pytest.mark.parametrize(
    "line", [b'"ends, with,",x ""y"" z,"a ""b"" c"\n', b'"a""",b\n', b'"a"" ,b\n', b'"a\\""b",c\n', b'{"a":1},"""",b\n']
)
def test_unsafe_lines_are_left_to_the_tokenizer(line) -> None:
    assert SafeBlocks(CsvOptions().rules(), newlines_in_quotes=False).quoting(line) is Quoting.NOT_SAFE
