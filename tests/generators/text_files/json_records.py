# SPDX-License-Identifier: Apache-2.0
"""JSON records: odd values in odd places, damage to them, and options that allow some of it."""

from __future__ import annotations

import base64
import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

VALUES = [
    *(b"1", b"-1", b"0", b"-0", b"1.0", b"1.5", b"1e3", b"1E400", b"-1e400", b"1e-400", b"9223372036854775807", b"0.1"),
    *(b"9223372036854775808", b"2147483648", b"32768", b"128", b"255", b"256", b"-129", b"1e39", b"16777217", b"1e-45"),
    *(b"12345678901234567890123456789012345678901", b"123456.789", b"99999.995", b"0.005", b"-0.005", b"1500e-2"),
    *(b'"1"', b'"1.5"', b'""', b'" 1"', b'"abc"', b'"1,234.5"', b'"NaN"', b'"-Infinity"', b'"INF"', b'"+INF"'),
    *(
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"+Infinity",
        b"INF",
        b"-INF",
        b"+INF",
        b"Inf",
        b"nan",
        b"-0.0",
        b"1x",
        b"1 2",
    ),
    *(
        b"true",
        b"false",
        b"null",
        b'"true"',
        b"tru",
        b"True",
        b"nul",
        b"01",
        b"00",
        b"+1",
        b".5",
        b"5.",
        b"-",
        b"1e",
        b"1e+",
    ),
    *(b"{}", b"[]", b'{"a":1}', b"[1]", b'[1,"x",3]', b"[[1]]", b'{"a":{"b":1}}', b'{"a":tru}', b"[tru]", b"[1,,2]"),
    *(b"[1,]", b'{"a":1,}', b'{"a" 1}', b"{a:1}", b"{'a':1}", b"'x'", b"'it''s'", b'{"a":1,"a":2}', b'{"a":1,"a":"x"}'),
    *(
        b'"a\\"b"',
        b'"\\u0041\\n\\/"',
        b'"\\ud83d\\ude00"',
        b'"\\ud83d"',
        b'"\\ude00x"',
        b'"\\q"',
        b'"\\\'"',
        b'"\\u12"',
    ),
    *(
        b'"\t"',
        b'"a\x01b"',
        b'"\xff"',
        b'"\xc3\xa9"',
        b'"\xed\xa0\x80"',
        b'"\xc0\x80"',
        b'"\xf5\x80\x80\x80"',
        b'"\xf0\x80\x80\x80"',
        b'"\xe2\x82"',
    ),
    *(b'"2020-01-02"', b'"2020-01-02T03:04:05"', b'"2020-01-02 03:04:05.123456789"', b'"2020-01-02T03:04:05Z"'),
    *(b'"2020-01-02T03:04Z"', b'"2020-01-02 03:04"', b'"2020-1-2"', b'"2020-13-01"', b'"2020-02-30"', b'"2020"'),
    *(b'"2020-01-02T03:04:05+01:00"', b'"2020-01-02T03:04:05+1:00"', b'"2020-01-02T03:04:05 Europe/Paris"'),
    *(b'"2020-03-08T02:30:00"', b'"2020-11-01T01:30:00"', b'"1850-01-01T00:00:00"', b'"0001-01-01"', b'"-0001-01-01"'),
    *(b'"12345-01-01"', b'"GMT2020-01-02"', b'"18262"', b'"2020-01-02Tabc"', b'"2020-01-02T030405"', b'" 2020-01-02 "'),
    *(b'"2020-01-02T24:00:00"', b'"2020-01-02T03:04:05+19:00"', b"1577836800", b"1577836800123"),
    *(
        b'"aGk="',
        b'"aGk"',
        b'"aG k="',
        b'" aGk= "',
        b'"a"',
        b'"aGk=aGk="',
        b'"ak="',
        b'"aG=k"',
        b'"YW\\u004aj"',
        b'"YW!j"',
    ),
]
AROUND = [
    b'{"a":%s}',
    b'{"z":9,"a":%s,"y":8}',
    b'{"z":9,"s":{"x":1,"a":%s,"w":2},"y":8}',
    b'{"z":9,"l":[null,%s,null],"y":8}',
    b'{"z":9,"other":{"x":%s},"y":8}',
    b'{"z":9,"m":{"k":%s,"k2":null},"y":8}',
    b'{"z":9,"ls":[{"a":%s},{"a":null}],"y":8}',
    b'[{"a":%s},{"y":1}]',
]
ENCODED = [
    mark + '{"é😀":9,"z":9,"a":"aGk=","y":8}'.encode(encoding)
    for encoding, mark in {
        "utf-16-be": b"\xfe\xff",
        "utf-16-le": b"\xff\xfe",
        "utf-32-be": b"\0\0\xfe\xff",
        "utf-32-le": b"\xff\xfe\0\0",
        "utf-8": b"\xef\xbb\xbf",
    }.items()
    for mark in (b"", mark)
]
TORTURE = [around % value for around in AROUND for value in VALUES]
TYPES = [
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp"),
    *("timestamp_ntz", "decimal(5,2)", "decimal(38,10)", "decimal(20,0)", "array<int>", "struct<a:int>"),
    *("map<string,int>", "array<string>", "map<string,array<int>>"),
]


def schema_of(kind: str, *, maps: bool = True) -> str:
    inside = f"z int, a {kind}, s struct<x:int,a:{kind},w:int>, l array<{kind}>, ls array<struct<a:{kind}>>"
    return f"{inside}{f', m map<string,{kind}>' if maps else ''}, y int, _corrupt_record string"


PARTS = [
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b" ", b"\t", b"0", b"-", b".", b"e", b"null", b"1", b"\xc3\xa9"),
    *(b"'", b"NaN", b'{"a":1}', b'"a":5,', b"\\u0000", b"/", b"\x7f"),
]


def mutated(line: bytes, rnd: random.Random) -> bytes:
    data = bytearray(line)
    for _ in range(rnd.randrange(1, 4)):
        at = rnd.randrange(len(data) + 1)
        match rnd.randrange(4):
            case 0:
                del data[at : at + 1]
            case 1:
                data[at:at] = rnd.choice(PARTS)
            case 2:
                data[at : at + 1] = bytes([rnd.randrange(32, 127)])
            case _:
                other = rnd.randrange(len(data) + 1)
                data[at:at] = data[min(at, other) : max(at, other)][:20]
    return bytes(data)


LENIENT: list[dict[str, Any]] = [
    {},
    {"allowComments": True, "allowUnquotedFieldNames": True},
    {"allowSingleQuotes": False, "allowNonNumericNumbers": False},
    {
        "allowNumericLeadingZeros": True,
        "allowBackslashEscapingAnyCharacter": True,
        "allowUnquotedControlChars": True,
    },
    {"timeZone": "Asia/Tokyo"},
]


def spelled(value: Any) -> Any:
    """A value as writers of JSON spell it."""
    if isinstance(value, dict):
        return {name: spelled(inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [spelled(inside) for inside in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, Decimal):
        return str(value) if value % 2 else float(value)
    return value.isoformat() if isinstance(value, dt.date | dt.datetime) else value
