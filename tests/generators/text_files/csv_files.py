# SPDX-License-Identifier: Apache-2.0
"""Random CSV files that are damaged, ambiguous or white, and options to read them with."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from forebay.formats.csv.options import CsvOptions
from forebay.options import class_options

ARROW = {
    "string": pa.string(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,10)": pa.decimal128(38, 10),
    "decimal(3,3)": pa.decimal128(3, 3),
    "binary": pa.binary(),
}
ODD = {
    "string": ["", "x y", " lead", "trail ", "NA", "é", "日本", "a\\b", "#c", '"', 'a"b', "\0", "\x01", "\t", "\xa0",
               "5"],
    "int": ["+7", " 3", "1e3", "0x1F", "2147483648", "-2147483648", "1.0", "007", "-0", "", "NA", "٣", "1_0", "-"],
    "double": ["1E400", "1e-400", "NaN", "nan", "Inf", "-Inf", "+Inf", "Infinity", "1f", " 1.5 ", "0x1p3", ".5",
               "5.", ".",
               "", "1e39", "16777217", "1.00000017881393432617187499", "4.9e-324", "-0.0", "1_0"],
    "boolean": ["True", "tRuE", "t", "0", "1", " true", "", "fal\u017fe"],
    "date": ["2020-1-2", "2020-02-30", "0000-01-01", "2020", "2020-01-02T00", "  2020-01-02", "20200102", "12345-01-01",
             "-0044-03-15", "1582-10-10", "1969-12-31", "", "7483647-01-01"],
    "timestamp": ["2020-01-02", "2020-01-02T03:04:05.123456", "2020-01-02 03:04:05.1234567", "2020-01-02T03:04:05Z",
                  "2020-01-02T03:04:05+01:00", "2020-01-02 03:04:05-23:00", "2020-01-02T03:04Z", "2020-01-02 03",
                  "1969-12-31 23:59:59.999999", "1883-11-18 12:03:58", "0001-01-01 00:00:00", "2020-02-30 00:00:00",
                  "2020-01-02 03:04:05 Europe/Berlin", "2024-03-31 02:30:00", "2024-10-27 02:30:00", "",
                  "2020-1-2 3:4:5",
                  "2000-01-01T00:00GMT+01:00", "2050-07-01 12:00:00", "9999-12-31 23:59:59"],
    "decimal": ["1.555", "-1.545", "1e2", "1E-3", "+5", ".5", "5.", ".", "5 ", "1,000", "99999999.995", "1e400", "",
                "NaN",
                "0e5000", "12345678901234567890123456789", "٣.٥", "0.0004", "0.9995"],
}  # fmt: skip
BOM = b"\xef\xbb\xbf"
KIN = {
    "tinyint": "int",
    "smallint": "int",
    "bigint": "int",
    "float": "double",
    "timestamp_ntz": "timestamp",
    "binary": "string",
}


def plain_value(chance: random.Random, kin: str) -> str:
    day = dt.date(1900, 1, 1) + dt.timedelta(days=chance.randrange(70_000))
    return {
        "int": str(chance.randint(-100, 100)),
        "double": repr(round(chance.uniform(-1e3, 1e3), 3)),
        "boolean": chance.choice(["true", "false"]),
        "date": str(day),
        "timestamp": f"{day} {chance.randrange(24):02}:{chance.randrange(60):02}:{chance.randrange(60):02}",
        "decimal": f"{chance.randint(-999, 999)}.{chance.randrange(100):02}",
        "string": chance.choice(["abc", "hello world", "x"]),
    }[kin]


def field(chance: random.Random, kind: str, quote: str, escape: str, sep: str) -> str:
    kin = "decimal" if kind.startswith("decimal") else KIN.get(kind, kind)
    text = plain_value(chance, kin) if chance.random() < 0.5 else chance.choice(ODD[kin])
    if quote and chance.random() < (0.9 if sep in text else 0.2):
        return quote + text.replace(quote, (escape if chance.random() < 0.8 else "") + quote) + quote
    return text


def damaged(chance: random.Random, line: str, marks: Sequence[str]) -> str:
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(line) + 1)
        line = line[:at] + chance.choice(marks) + line[at + chance.choice([0, 0, 1]) :]
    return line


def file_of(chance: random.Random, kinds: Sequence[str], options: dict[str, Any]) -> bytes:
    sep, quote = options.get("sep", ","), options.get("quote", '"')
    escape, multi = options.get("escape", "\\"), options.get("multi_line", False)
    marks = [
        quote,
        quote,
        escape,
        sep,
        " ",
        "\0",
        "a",
        "#",
        "\t",
        "\ufeff",
        quote * 2,
        quote + sep,
        sep + quote,
        "\n" if multi else "",
    ]
    end = options.get("line_sep") or chance.choice(["\n", "\n", "\r\n", "\r"])
    lines = []
    for _ in range(chance.randint(0, 7)):
        fields = [field(chance, kind, quote, escape, sep) for kind in kinds]
        fields = chance.choice([fields] * 8 + [[*fields, "x"], fields[:-1]])
        line = sep.join(fields)
        lines.append(damaged(chance, line, marks) if chance.random() < 0.3 else line)
        if chance.random() < 0.1:
            lines.append(chance.choice(["", "  ", "\t", "#comment", '# "x', "\x01", " #x"]))
    data = (end.join(lines) + (end if chance.random() < 0.7 else "")).encode()
    if chance.random() < 0.15 and data:
        at = chance.randrange(len(data))
        data = (
            data[:at] + chance.choice([b"\xff", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80"]) + data[at:]
        )
    if chance.random() < 0.08 and data:
        data = b"\xef\xbb\xbf" + data
    return b"" if goes_astray(data, options) else data


def goes_astray(data: bytes, options: dict[str, Any]) -> bool:
    """Whether Spark's parser goes astray.

    With multiLine, in a file without characters, and at a last carriage return in a file of up to four. Without it, at
    a first record of a byte order mark with white space or a comment behind it.
    """
    if options.get("multi_line"):
        text = data.decode(options.get("encoding", "UTF-8"), "replace").removeprefix("\ufeff")
        return not text or (len(text) <= 4 and text.endswith("\r"))
    comment = options.get("comment", "\n").encode()

    def skipped(line: bytes) -> bool:
        return not line.strip(bytes(range(33))) or line.startswith(comment)

    separator = options.get("line_sep")
    body = data.removeprefix(BOM)
    lines = re.split(rb"\r\n|\r|\n", body) if separator is None else body.split(separator.encode())
    first = next((line for line in lines if not skipped(line)), b"")
    return not options.get("header") and first.startswith(BOM) and skipped(first.removeprefix(BOM))


def options_of(chance: random.Random, *, multi_line: bool) -> dict[str, Any]:
    """Compatible options, without those that make Spark itself fail on some files."""
    options: dict[str, Any] = {"multi_line": True} if multi_line else {}

    def maybe(share: float, name: str, *values: Any) -> None:
        if chance.random() < share:
            options[name] = chance.choice(values)

    maybe(0.3, "header", True)
    maybe(0.3, "sep", ";", "\t", "|", " ")
    maybe(0.35, "escape", '"', '"', "")
    maybe(0.1, "quote", "'", "")
    maybe(0.2, "null_value", "NA", "-", "x")
    maybe(0.2, "empty_value", "EV", "5", "NA")
    maybe(0.2, "comment", "#")
    maybe(0.2, "ignore_leading_white_space", True)
    if "ignore_leading_white_space" in options:
        maybe(0.5, "ignore_trailing_white_space", True)
    maybe(0.15, "line_sep", "\n", "\x1e", "\r")
    maybe(
        0.15,
        "unescaped_quote_handling",
        "STOP_AT_CLOSING_QUOTE",
        "BACK_TO_DELIMITER" if not multi_line else "STOP_AT_DELIMITER",
    )
    maybe(0.15, "mode", "DROPMALFORMED")
    maybe(0.25, "time_zone", "America/New_York", "Europe/Berlin", "+05:30", "Asia/Kolkata")
    maybe(0.1, "nan_value", "nan", "-", "5")
    maybe(0.06, "date_format", "yyyy-MM-dd", "dd/MM/yyyy", "yyyyMMdd")
    maybe(0.06, "timestamp_format", "yyyy-MM-dd HH:mm:ss", "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]")
    return options


def for_spark(options: dict[str, Any]) -> dict[str, str]:
    names = {spec.python_name: spec.name for spec in class_options(CsvOptions)}
    return {
        names[name]: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
    }


WHITE = [" ", "\t", "\0", "  \x01", "\x0b \x1f"]


def file_of_white_lines(chance: random.Random, end: str) -> bytes:
    """A file whose lines are mostly of white space, or have another number of fields than most schemas.

    More than 64 of a kind, because then the splitter learns how many fields a record has.
    """
    fields = chance.choice([["1"], ["1", "2"], ["1", "2", "3"], ['"1"', '"x""y"'], ['"1"2', "3"], ["1", '"a,b" "c"']])
    record, blanks = ",".join(fields), chance.choice([WHITE, WHITE[:1], [*WHITE, ""]])
    lines = [record] * chance.choice([1, 10, 70, 130]) + chance.choices(blanks, k=chance.choice([0, 1, 9, 70, 150]))
    lines += chance.choices(["1", "1,2", "1,2,3,4", '"'], k=chance.choice([0, 0, 1, 70]))
    chance.shuffle(lines)
    return end.join(lines).encode()


def options_of_white_lines(chance: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {
        str(name): chance.choice(values)
        for name, *values in [
            ("header", True),
            ("line_sep", "\n", "\x1e"),
            ("sep", " ", "\t"),
            ("comment", "#"),
            ("empty_value", "EV"),
            ("null_value", " "),
            ("ignore_leading_white_space", True),
            ("multi_line", True),
        ]
        if chance.random() < 0.2
    }
    if "ignore_leading_white_space" in options:  # Spark itself fails where only white space at the end is trimmed
        options["ignore_trailing_white_space"] = chance.choice([True, False])
    return options
