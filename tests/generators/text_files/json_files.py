# SPDX-License-Identifier: Apache-2.0
"""Random JSON files, with whole and damaged records in lines or documents, and options to read them with."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from generated_files.cases import Column, column

from text_files.json_records import ENCODED, LENIENT, TORTURE, TYPES, mutated, schema_of, spelled

ODD_LINES = [
    *(b"", b" ", b"\t ", b"bad", b"[]", b"5", b"null", b'"x"', b"{}", b"{} x", b"[{}, null]", b"[[{}]]", b"{", b"\0"),
    *(b"\xef\xbb\xbf", b"\xef\xbb\xbf{}", b"\x0b", b"\xc2\xa0{}", b"}", b"# {}", b"// {}", b"/* */ {}"),
]
MARK = b"\xef\xbb\xbf"
LARGE_EXPONENT = re.compile(rb"([eE][+-]?\d{3})[\d.]+")
NOT_UTF8 = [b"\xff", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80"]
DAY_1, DAY_9999 = dt.date(1, 1, 1), dt.date(9999, 12, 31)
EPOCH = dt.datetime(1970, 1, 1)


def options_of(chance: random.Random) -> dict[str, Any]:
    """Compatible options by Spark's names."""
    options: dict[str, Any] = dict(chance.choice(LENIENT)) if chance.random() < 0.4 else {}

    def maybe(share: float, name: str, *values: Any) -> None:
        if chance.random() < share:
            options[name] = chance.choice(values)

    maybe(0.2, "multiLine", True)
    maybe(0.2, "mode", "DROPMALFORMED")
    maybe(0.3, "timeZone", "America/New_York", "Europe/Berlin", "+05:30", "Asia/Kolkata")
    maybe(0.1, "dateFormat", "yyyy-MM-dd", "dd/MM/yyyy", "yyyyMMdd")
    maybe(0.1, "timestampFormat", "yyyy-MM-dd HH:mm:ss", "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]")
    maybe(0.1, "enableDateTimeParsingFallback", True, False)
    maybe(0.15, "lineSep", "\n", "|", "ab", "\r")
    if chance.random() < 0.2:
        wide = ["UTF-16", "UTF-32"] if "multiLine" in options else []
        options["encoding"] = chance.choice(["UTF-8", "ISO-8859-1", "US-ASCII", "UTF-16LE", "UTF-16BE", *wide])
        if options["encoding"] != "UTF-8" and "multiLine" not in options:
            options.setdefault("lineSep", "\n")
        # Spark has another parser then: other values are left of a malformed record, its text is the bytes, and numbers
        # that are read as strings are formatted.
        options["mode"] = "DROPMALFORMED"
    return options


def records_of(chance: random.Random, options: dict[str, Any]) -> tuple[str, list[bytes]]:
    """Columns as DDL, without one for malformed records, and records for them: odd ones, or rows of a table."""
    if chance.random() < 0.5:
        kinds = [kind for kind in TYPES if "encoding" not in options or kind not in {"string", "array<string>"}]
        return schema_of(chance.choice(kinds)).removesuffix(", _corrupt_record string"), [*TORTURE, *ENCODED]
    columns = {f"c{place}": column(chance, 2) for place in range(chance.randrange(1, 6))}
    ddl = ", ".join(f"{name} {each.kind}" for name, each in columns.items())
    return ddl, [_row(chance, columns) for _ in range(300)]


def _row(chance: random.Random, columns: dict[str, Column]) -> bytes:
    names = [name for name in columns if chance.random() < 0.9]
    if chance.random() < 0.2:
        chance.shuffle(names)
    row = {name: _value(columns[name].make(chance), columns[name].type) for name in names}
    separators = chance.choice([(",", ":"), (", ", ": ")])
    return json.dumps(row, ensure_ascii=chance.random() < 0.5, separators=separators).encode()


def _value(value: Any, kind: pa.DataType) -> Any:
    """A generated value as writers of JSON spell it."""
    if value is None:
        return None
    if isinstance(kind, pa.StructType):
        return {each.name: _value(value[each.name], each.type) for each in kind}
    if isinstance(kind, pa.MapType):
        return {key: _value(inside, kind.item_type) for key, inside in value}
    if isinstance(kind, pa.ListType):
        return [_value(inside, kind.value_type) for inside in value]
    if pa.types.is_date(kind):
        day = dt.date(1970, 1, 1).toordinal() + value
        return str(dt.date.fromordinal(day)) if 1 <= day <= DAY_9999.toordinal() else value
    if pa.types.is_timestamp(kind):
        return (EPOCH + dt.timedelta(microseconds=value)).isoformat() + "Z" * (value % 2)
    if isinstance(value, Decimal):
        return str(value) if value.as_tuple().digits[-1] % 2 else float(value)
    return spelled(value)


def file_of(chance: random.Random, records: Sequence[bytes], options: dict[str, Any]) -> bytes:
    """A file of some of the records, a share of them damaged.

    Without what Spark cannot read: Jackson confuses names that begin with the byte FF; numbers with large exponents are
    computed for hours; a byte order mark of UTF-16 belongs to the first line.
    """
    damage = 0 if "encoding" in options else chance.choice([0, 0, 0.1, 0.3, 1])
    lines = []
    for _ in range(chance.choice([0, 1, 1, 2, 5, 12])):
        line = chance.choice(records)
        lines.append(mutated(line, chance) if chance.random() < damage else line)
        if chance.random() < damage:
            lines.append(
                chance.choice([*ODD_LINES, line + lines[-1], line + b" " + lines[-1], b"[%s,%s]" % (line, line)])
            )
    end = options.get("lineSep", chance.choice(["\n", "\n", "\r\n", "\r"])).encode()
    if options.get("multiLine") and chance.random() < 0.6:
        data = chance.choice([b"[%s]", b"[\n%s\n]\n", b" [%s"]) % (b"," + end).join(lines)
    else:
        data = end.join(lines) + (end if chance.random() < 0.7 else b"")
    if chance.random() < damage / 3 and data:
        at = chance.randrange(len(data))
        data = data[:at] + chance.choice(NOT_UTF8) + data[at:]
    if chance.random() < damage / 3 and data:
        data = data[: chance.randrange(len(data))]
    data = LARGE_EXPONENT.sub(rb"\1", data.replace(b'"\xff', b'"'))
    encoding = options.get("encoding", "UTF-8")
    marked = chance.random() < 0.08
    if marked and encoding.startswith("UTF-") and (encoding == "UTF-8" or "multiLine" in options):
        data = MARK + data
    if encoding != "UTF-8":
        data = data.decode(errors="replace").encode(encoding, "replace")
    return MARK + data if marked and not encoding.startswith("UTF-") else data
