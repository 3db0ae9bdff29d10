# SPDX-License-Identifier: Apache-2.0
"""CPU seconds to read hostile files of 0.25, 1 and 4 MB in every text format: they must grow no faster than the size.

Each cell is read in a process of its own, stopped after `--limit` seconds. `growth` is the exponent between the
two largest sizes: 1 is linear, 2 is the square. Cells of less than 0.2 s are not shown: start-up decides there.

Run it: ``make bench BENCH=hostile_inputs``, or a part of it with ``BENCH_ARGS='--only csv/multi --inputs quote'``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO

import pyarrow as pa

from forebay.errors import ForebayError
from forebay.formats.base import FileFormat
from forebay.formats.csv.format import CsvFormat
from forebay.formats.csv.options import CsvOptions
from forebay.formats.json.format import JsonFormat
from forebay.formats.json.options import JsonOptions
from forebay.formats.text import TEXT_SCHEMA, TextFormat, TextOptions
from forebay.text_tables import text_table

SHOWN_FROM = 0.2
LINEAR = 1.4
"""Larger exponents are marked."""

Maker = Callable[[int], bytes]
"""Makes an input of about so many bytes."""


@dataclass(frozen=True)
class Memory:
    """A file in memory."""

    data: bytes
    path: str = "hostile"

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self.data)

    def open(self) -> BinaryIO:
        """Open it."""
        return io.BytesIO(self.data)


@dataclass(frozen=True)
class Way:
    """How to read: a format, a schema (None: infer it first), and the inputs of its kind."""

    name: str
    format: FileFormat
    schema: pa.Schema | None
    inputs: Mapping[str, Maker]


def around(size: int, *, before: bytes = b"", piece: bytes, after: bytes = b"") -> bytes:
    """One piece again and again, with something before and after."""
    return before + piece * (size // len(piece)) + after


def fill(text: str) -> Maker:
    """An input written as `before<piece>after`."""
    before, _, rest = text.partition("<")
    piece, _, after = rest.rpartition(">")
    return partial(around, before=before.encode(), piece=piece.encode(), after=after.encode())


def numbered(size: int, *, form: str, separator: str, before: str = "", after: str = "") -> bytes:
    """Numbered pieces."""
    count = size // len((form % 100_000) + separator)
    return (before + separator.join([form % number for number in range(count)]) + after).encode()


def halves(size: int, *, form: str, one: str, other: str) -> bytes:
    """Two pieces, each again and again, in a form."""
    count = size // len(one + other)
    return (form % (one * count, other * count)).encode()


CHARACTERS = {
    "quotes": '"',
    "spaces": " ",
    "tabs": "\t",
    "digits": "7",
    "zeros": "0",
    "backslashes": "\\",
    "escaped quotes": '\\"',
    "commas": ",",
    "comments": "#\n",
    "comment marks": "#",
    "BOMs": "\ufeff",
    "line feeds": "\n",
    "carriage returns": "\r",
    "both line ends": "\r\n",
    "colons": ":",
    "brackets": "[",
    "braces": "{",
    "NULs": "\0",
    "apostrophes": "'",
    "letters": "x",
    "Chinese": "日",
    "emoji": "😀",
    "Arabic digits": "٣",
    "no characters": "\ufdd0",
    "minus signs": "-",
    "points": ".",
    "slashes": "/",
}
BROKEN = {"no UTF-8": b"\xff", "surrogates": b"\xed\xa0\x80", "halves of characters": b"\xe6\x97"}

VALUES = {
    **{name: f"<{piece}>" for name, piece in CHARACTERS.items() if piece not in '"\\\\"\n\r\n#\n<>'},
    **{f"{name}, x": f"<{piece}>x" for name, piece in {"digits": "7", "zeros": "0", "spaces": " "}.items()},
    "a digit after spaces": "< >7",
    "a digit before spaces": "7< >",
    "a negative number": "-<7>",
    "a fraction": "7.<7>",
    "a fraction, x": "7.<7>x",
    "a fraction of zeros": "0.<0>7",
    "an exponent": "1e<7>",
    "a negative exponent": "1e-<7>",
    "a hexadecimal number": "0x<f>p1",
    "a hexadecimal number, x": "0x<f>x",
    "a year": "<2>-01-02",
    "a day, digits": "2020-01-02<7>",
    "a second, digits": "2020-01-02 03:04:05.<7>",
    "a second, digits, x": "2020-01-02 03:04:05.<7>x",
    "a zone": "2020-01-02 03:04:05 Europe/<x>",
    "an offset": "2020-01-02 03:04:05+<0>",
    "halves of days": "2020-01-02 03:04:05<am>",
    "a half of a day, spaces": "2020-01-02 03:04:05am< >x",
    "GMT": "<GMT>",
    "base64": "<QUJD>",
    "base64, x": "<QUJD>x",
}
"""Hostile values of one column: `before<piece>after`."""

ROWS = "1,2,3\n"
CSV: dict[str, Maker] = {
    **{name: fill(f"<{piece}>") for name, piece in CHARACTERS.items()},
    **{name: partial(around, piece=piece) for name, piece in BROKEN.items()},
    **{f"{name} in quotes": fill(f'1,"<{piece}>",3\n') for name, piece in CHARACTERS.items()},
    **{f"{name}, then a letter": fill(f"<{piece}>x\n") for name, piece in CHARACTERS.items()},
    "one stray quote, rows": fill(f'1,"x\n<{ROWS}>'),
    "one stray quote in a value, rows": fill(f'1,"x"y\n<{ROWS}>'),
    "rows, one stray quote": fill(f'<{ROWS}>1,"x\n'),
    "a quoted cell of rows": fill(f'1,"<{ROWS}>",3\n'),
    "a stray quote in each row": fill('<1,"x"y,3\n>'),
    "an open quote in each row": fill('<1,"x,3\n>'),
    "a doubled quote in each row": fill('<1,"x""y",3\n>'),
    "quotes and letters": fill('1,"<x">",3\n'),
    "quotes and letters, closed": fill('1,"<"x>",3\n'),
    "quotes and commas": fill('1,"<",>"\n'),
    "quotes and spaces": fill('1,"<" >"\n'),
    "quotes, spaces and letters": fill('1,"<" x>"\n'),
    "a quote, spaces": fill('1,"x"< >y\n'),
    "quotes and line ends": fill('1,"<"\n>"\n'),
    "quotes and escapes": fill('1,"<\\\\">"\n'),
    "escapes at the end": fill('1,"x"y<\\>\n'),
    "three quotes": fill('1,"""<x>"""\n'),
    "three quotes, rows": fill(f'1,"""<{ROWS}>"""\n'),
    "quoted empty cells": fill('<"",>'),
    "quoted cells": fill('<"a",>'),
    "rows of other widths": fill("<1,2\n1,2,3,4\n>"),
    "many columns": partial(numbered, form="%d", separator=",", after="\n"),
    "rows": fill(f"<{ROWS}>"),
    "different words": partial(numbered, form="w%d,x,y", separator="\n"),
    "a row, line feeds": fill("1,2,3<\n>"),
    "comments after a row": fill("1,2,3\n<#x\n>"),
    "all line ends": fill("<1,2,3\r\n1,2,3\n1,2,3\r>"),
}


def csv_ways() -> Iterator[Way]:
    """Every way of reading CSV here."""
    strings = pa.schema([("a", pa.string()), ("b", pa.string()), ("_corrupt_record", pa.string())])
    wide = CsvOptions(max_columns=10_000_000)
    handlings = ("STOP_AT_CLOSING_QUOTE", "BACK_TO_DELIMITER", "SKIP_VALUE", "RAISE_ERROR")
    ways = {
        "": wide,
        "/header": replace(wide, header=True),
        "/escape": replace(wide, escape='"'),
        "/trim": replace(wide, ignore_leading_white_space=True, ignore_trailing_white_space=True),
        "/comment": replace(wide, comment="#"),
        "/separator": replace(wide, line_sep="\r\n"),
        "/drop": replace(wide, mode="DROPMALFORMED"),
        **{f"/{handling.lower()}": replace(wide, unescaped_quote_handling=handling) for handling in handlings},
    }
    for name, multi in (("csv", False), ("csv/multi", True)):
        for what, options in ways.items():
            yield Way(name + what, CsvFormat(replace(options, multi_line=multi)), strings, CSV)
        infer = CsvOptions(multi_line=multi, infer_schema=True)
        yield Way(f"{name}/infer", CsvFormat(infer), None, CSV)
    values = {name: fill(text + "\n") for name, text in VALUES.items()}
    for kind in TYPES[:-1]:
        yield Way(f"csv/{kind}", CsvFormat(wide), pa.schema([("a", kind)]), values)
    yield Way("csv/infer", CsvFormat(replace(wide, infer_schema=True)), None, values)
    patterns = replace(wide, date_format="d.M.yyyy", timestamp_format="d.M.yyyy HH:mm:ss[.SSS]XXX")
    for kind in (pa.date32(), pa.timestamp("us", "UTC")):
        yield Way(f"csv/pattern/{kind}", CsvFormat(patterns), pa.schema([("a", kind)]), values)


TYPES = [
    pa.int32(),
    pa.int64(),
    pa.float64(),
    pa.float32(),
    pa.decimal128(20, 2),
    pa.date32(),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us"),
    pa.bool_(),
    pa.binary(),
]

LINE = '{"a":1}\n'
JSON: dict[str, Maker] = {
    **{f"{name} in a string": fill(f'{{"a":"<{piece}>"}}\n') for name, piece in CHARACTERS.items()},
    **{f"{name} as a value": fill(f'{{"a":<{piece}>}}\n') for name, piece in CHARACTERS.items()},
    **{f"{name} in a name": fill(f'{{"<{piece}>":1}}\n') for name, piece in CHARACTERS.items()},
    **{f"{name} alone": fill(f"<{piece}>") for name, piece in CHARACTERS.items()},
    **{
        f"{name} in a string": partial(around, before=b'{"a":"', piece=piece, after=b'"}\n')
        for name, piece in BROKEN.items()
    },
    "escapes": fill('{"a":"<\\n>"}\n'),
    "escaped letters": fill('{"a":"<\\u00e4>"}\n'),
    "escaped pairs": fill('{"a":"<\\ud83d\\ude00>"}\n'),
    "halves of pairs": fill('{"a":"<\\ud83d>"}\n'),
    "unknown escapes": fill('{"a":"<\\x>"}\n'),
    "escapes in a name": fill('{"<\\n>":1}\n'),
    "strings of 12,000 letters": fill('{"a":[<"' + "x" * 12_000 + '",>"x"]}\n'),
    "strings of 49,000 letters": fill('{"a":[<"' + "x" * 49_000 + '",>"x"]}\n'),
    "numbers of 900 digits": fill('{"a":[<' + "7" * 900 + ",>1]}\n"),
    "a comment": fill('{"a":/*<*x>*/1}\n'),
    "comments": fill('{"a":</**/>1}\n'),
    "an open string": fill('{"a":"<' + LINE + ">"),
    "an open object": fill('{"a":{<"b":1,>'),
    "nested arrays": partial(halves, form='{"a":%s%s}\n', one="[", other="]"),
    "nested objects": partial(halves, form='{"a":%s1%s}\n', one='{"a":', other="}"),
    "an array of numbers": fill('{"a":[<1,>1]}\n'),
    "an array of objects": fill('{"a":[<{"b":1},>{"b":1}]}\n'),
    "an array of strings": fill('{"a":[<"x",>"x"]}\n'),
    "an array of other objects": partial(numbered, form='{"k%d":1}', separator=",", before='{"a":[', after="]}\n"),
    "blanks after": fill('{"a":1}< >\n'),
    "blanks before": fill('< >{"a":1}\n'),
    "words": fill('{"a":<true>}\n'),
    "one name again": fill('{<"a":1,>"a":1}\n'),
    "another name again": fill('{<"z":1,>"a":1}\n'),
    "many names": partial(numbered, form='"k%d":1', separator=",", before="{", after="}\n"),
    "a new name in each line": partial(numbered, form='{"k%d":1}', separator="\n"),
    "another new name in each line": partial(numbered, form='{"a":"x","k%d":1}', separator="\n"),
    "a new name in each broken line": partial(numbered, form='{"k%d":1,"a":}', separator="\n"),
    "lines": fill(f"<{LINE}>"),
    "broken lines": fill('<{"a":1\n>'),
    "every second line broken": fill('<{"a":1}\n{"a":\n>'),
    "lines of arrays": fill('<[{"a":1},{"a":2}]\n>'),
    "a line of objects": fill('[<{"a":1},>{"a":2}]\n'),
    "a line of broken objects": fill('[<{"a":1,},>{"a":2}]\n'),
    "a document": fill('[\n<{"a":1},\n>{"a":2}]\n'),
    "a document, broken at its end": fill('[\n<{"a":1},\n>{"a":2'),
    "a document with another value": fill('[\n<{"a":1},\n>{"a":"x"}]\n'),
    "objects in one line": fill('<{"a":1}>\n'),
}


def json_ways() -> Iterator[Way]:
    """Every way of reading JSON here."""
    deep = pa.struct([("b", pa.int64())])
    text = pa.schema([("a", pa.string())])
    lenient = JsonOptions(
        allow_comments=True,
        allow_unquoted_field_names=True,
        allow_numeric_leading_zeros=True,
        allow_backslash_escaping_any_character=True,
        allow_unquoted_control_chars=True,
    )
    more = JsonOptions(infer_timestamp=True, prefers_decimal=True)
    ways: dict[str, tuple[JsonOptions, pa.Schema | None]] = {
        "": (JsonOptions(), text),
        "/corrupt": (JsonOptions(), text.append(pa.field("_corrupt_record", pa.string()))),
        "/long": (JsonOptions(), pa.schema([("a", pa.int64())])),
        "/array": (JsonOptions(), pa.schema([("a", pa.list_(deep))])),
        "/map": (JsonOptions(), pa.schema([("a", pa.map_(pa.string(), pa.int64()))])),
        "/lenient": (lenient, text),
        "/infer": (JsonOptions(), None),
        "/infer/more": (more, None),
    }
    for name, multi in (("json", False), ("json/multi", True)):
        for what, (options, schema) in ways.items():
            yield Way(name + what, JsonFormat(replace(options, multi_line=multi)), schema, JSON)
    values = {name: fill(f'{{"a":{text}}}\n') for name, text in VALUES.items()}
    values |= {f"{name} in a string": fill(f'{{"a":"{text}"}}\n') for name, text in VALUES.items()}
    for kind in TYPES:
        yield Way(f"json/{kind}", JsonFormat(), pa.schema([("a", kind)]), values)
    yield Way("json/infer/more", JsonFormat(more), None, values)


def text_ways() -> Iterator[Way]:
    """Every way of reading text here."""
    ways = {
        "": TextOptions(),
        "/whole": TextOptions(wholetext=True),
        "/separator": TextOptions(line_sep="aab"),
        "/overlapping": TextOptions(line_sep="  "),
    }
    for what, options in ways.items():
        yield Way(f"text{what}", TextFormat(options), TEXT_SCHEMA, CSV)


def read_all(way: Way, data: bytes) -> None:
    """Read the data; a file that is refused counts as read."""
    file, schema = Memory(data), way.schema
    with contextlib.suppress(ForebayError):
        if schema is None:
            schema = way.format.infer_schema([file])
            if len(str(schema)) > 20_000:
                return  # as many columns as rows make a large table, whatever reads it
        for _ in way.format.read(file, schema):
            pass


def seconds(way: Way, data: bytes, limit: float) -> float | str:
    """Return the CPU seconds that a process of its own takes, or why there are none."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        logging.disable()
        began = time.process_time()
        try:
            read_all(way, data)
        except BaseException as error:  # noqa: BLE001 - shown in the table
            sender.send(type(error).__name__)
        else:
            sender.send(time.process_time() - began)

    child = context.Process(target=run, daemon=True)
    child.start()
    sender.close()
    found: float | str = f">{limit:g}"
    if receiver.poll(limit):
        try:
            found = receiver.recv()
        except EOFError:
            found = "died"
    child.kill()
    child.join()
    receiver.close()
    return found


def row_of(way: Way, what: str, sizes: list[float], limit: float) -> tuple[list[str], bool]:
    """Return one row of the table, and whether it is worth showing."""
    found: list[float] = []
    problem = ""
    for megabytes in sizes:
        took = seconds(way, way.inputs[what](int(megabytes * 1_000_000)), limit)
        if isinstance(took, str):
            problem = took
            break
        found.append(took)
    growth = ""
    if len(found) == len(sizes) > 1:
        exponent = math.log(max(found[-1], 1e-3) / max(found[-2], 1e-3)) / math.log(sizes[-1] / sizes[-2])
        growth = f"{exponent:.2f}"
        if exponent > LINEAR and found[-1] >= SHOWN_FROM:
            problem = "faster than its size"
    texts = [f"{took:.2f}" for took in found] + [""] * (len(sizes) - len(found))
    return [way.name, what, *texts, growth, problem], bool(problem) or found[-1] >= SHOWN_FROM


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.25, 1, 4])
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which a cell is stopped")
    parser.add_argument("--only", default="", help="a part of the names of ways")
    parser.add_argument("--inputs", default="", help="a part of the names of inputs")
    given = parser.parse_args()
    rows: list[list[str]] = []
    count = 0
    for way in (*csv_ways(), *json_ways(), *text_ways()):
        for what in way.inputs:
            if given.only not in f"{way.name} " or given.inputs not in what:
                continue
            row, shown = row_of(way, what, given.megabytes, given.limit)
            count += 1
            rows += [row] * shown
            if row[-1]:
                print(" | ".join(row), file=sys.stderr, flush=True)
    print(text_table(["way", "input", *(f"{size:g} MB" for size in given.megabytes), "growth", ""], rows))
    bad = sum(bool(row[-1]) for row in rows)
    print(f"{count} cells; {len(rows)} took {SHOWN_FROM} s or more; {bad} were stopped, failed or grew too fast")


if __name__ == "__main__":
    main()
