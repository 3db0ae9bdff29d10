# SPDX-License-Identifier: Apache-2.0
"""Splitting uniform lines into their values, and finding lines of another form."""

from __future__ import annotations

import pytest

from forebay.formats.json.arrow import NotSafe
from forebay.formats.json.uniform import Template, UniformSplitter, template_of

FORM = b'{"a":1,"b":"x"}'


def template(line: bytes) -> Template:
    found = template_of(line)
    assert found is not None
    return found


def split(data: bytes, form: bytes = FORM) -> tuple[list[list[str]], list[tuple[int, bytes]]]:
    """The values of each row, and the other lines with the number of rows before them."""
    found = UniformSplitter(template(form)).split(data)
    assert found is not None
    for array in found.by_piece.values():
        array.validate(full=True)
    values = zip(*(array.to_pylist() for array in found.by_piece.values()), strict=True)
    ends = zip(found.others.starts, found.others.ends, strict=True)
    others = [data[start:end] for start, end in ends]
    return [list(row) for row in values], list(zip(found.before_others.tolist(), others, strict=True))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n", b"\n\r\n"])
@pytest.mark.parametrize("last", [b"", b"end"])
def test_lines_may_end_in_several_ways(end: bytes, last: bytes) -> None:
    lines = [b'{"a":%d,"b":"%d"}' % (n, n) for n in range(100)]
    data = end.join(lines) + last.replace(b"end", end)
    assert split(data) == ([[str(n), str(n)] for n in range(100)], [])


@pytest.mark.parametrize(
    "irregular",
    [
        b'{"a":1,"c":"x"}',
        b'{"a":1,"b":"x" }',
        b' {"a":1,"b":"x"}',
        b'{"a":1,"b":"x"',
        b'{"a":1 "b":"x"}',
        b'{"a":1,"b":null}',
        b'{"b":"x","a":1}',
        b'{"a"1,"b":"x"}',
        b'"a":1,"b":"x"',
        b'{"a":1,"b":"x"}{"a":1,"b":"x"}',
        b'""""""',
        b'"',
        b" ",
        '{"a":1,"b":"x"é'.encode(),
        'é"a":1,"b":"x"}'.encode(),
    ],
)
def test_a_line_of_another_form_is_found_among_the_others(irregular: bytes) -> None:
    usual = [b'{"a":%d,"b":"%d"}' % (n, n) for n in range(3)]
    rows = [[str(n), str(n)] for n in range(3)]
    for place in range(4):
        lines = [*usual[:place], irregular, *usual[place:]]
        assert split(b"\n".join(lines)) == (rows, [(place, irregular)])
        assert split(b"\r\n".join(lines) + b"\r\n") == (rows, [(place, irregular)])


def test_an_excess_quote_and_a_missing_one_do_not_cancel() -> None:
    lines = [FORM + FORM, FORM, FORM, b"1", FORM]
    assert split(b"\n".join(lines)) == ([["1", "x"]] * 3, [(0, FORM + FORM), (2, b"1")])


def test_a_piece_shorter_than_the_gaps_around_its_value_is_another_form() -> None:
    wide = b'{   "a":   1   ,   "b":   2   }'
    lines = [wide, b'{"a":1,"b":2}', wide, b'{   "a":   ,   "b":   2   }', b'{   "a":   1   ,   "b":}']
    assert split(b"\n".join(lines), wide) == ([["1", "2"]] * 2, [(1, lines[1]), (2, lines[3]), (2, lines[4])])


def test_lines_shorter_than_the_start_of_the_form_have_another_form() -> None:
    wide = b"{" + b" " * 100 + b'"a":1}'
    assert UniformSplitter(template(wide)).split(b'{"a":1}\n{"a":2}\n') is None


@pytest.mark.parametrize("data", [b'{"a":1,"b":"x"}\r{"a":2,"b":"y"}\n', b'{"a":1,"b":"x"}\r', b'{"a":1,\r"b":"x"}\n'])
def test_a_carriage_return_alone_as_line_end_is_left_to_other_readers(data: bytes) -> None:
    assert UniformSplitter(template(FORM)).split(FORM + b"\r\n" + FORM + b"\n" + data) is None


@pytest.mark.parametrize("data", [b"", b"\n", b"\r\n", b"x", b'"a"\n'])
def test_a_block_without_a_line_of_the_form_is_not_split(data: bytes) -> None:
    assert UniformSplitter(template(FORM)).split(data) is None


def test_a_form_without_values_is_refused() -> None:
    with pytest.raises(NotSafe):
        UniformSplitter(template(b'{"a":{"b":{}}}'))
