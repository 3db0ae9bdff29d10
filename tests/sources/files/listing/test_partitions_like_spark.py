# SPDX-License-Identifier: Apache-2.0
"""Directory names in the partition discovery of Spark and of forebay."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.errors import ConfigurationError
from forebay.sources.files.partitions import NULL_NAME, partitions

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

UNUSUAL = """
1|+1|-1|01|1_0| 1|1 |\u0663|2147483647|2147483648|9223372036854775808|1e3|1E3|1.5|1.0|1.|0.0|-0|-0.0|.5|1e-3|1.5f|1d
1L|NaN|nan|Infinity|-Infinity|inf|0x10|0x1p3|1e37|1e38|1e400|0e5|00e5|100e-1|1e+3|true|2024-01-01|2024-1-1|2024-02-30
20240101|2024-01|2024-01-01 00:00:00|2024-01-01T00:00:00|2024-01-01 00%3A00%3A00.1|2024-01-01 00:00:00.12
2024-01-01 24:00:00|2024-01-01 00:00|+12345-01-01|12345-01-01|0000-01-01|-0001-01-01|+2024-01-01| 2024-01-01
2024-01-01 |__HIVE_DEFAULT_PARTITION__|a%2Fb|a b|a=b|😀|%31|1%32|1%2E5|2024%2D01%2D01|2024-01-01%2000%3A00%3A00|1e-400
0x1.8p1d|\u0661.\u0665|+|-|+-1|1,000|null|1582-10-10|12:00:00|12%3A00%3A00|12:00:00.1|12:00:00.1234567|12:00|24:00:00
%|%zz|a%|%00|%e9|%C3%A9|-NaN|Infinityd|NaNf|1e5d|\uff11|\U0001d7cf|1e\u0663|\u0663e2|\t1.5|1e2147483648|1e-2147483648
-9223372036854775808|-2147483649|99999999999999999999999999999999999999|100000000000000000000000000000000000000
2024-03-10 02:30:00|2024-11-03 01:30:00|0001-01-01 00:00:00|9999-12-31 23:59:59|+12345-07-01 00:00:00
1800-01-01 00:00:00|9223372036854775807"""
VALUES = [value for line in UNUSUAL.split("\n") for value in line.split("|") if value] + ["a\nb", "1\n"]


Outcome = tuple[list[str], dict[str, str]] | None


class Partitioner:
    """Spark's own partition discovery on names without files: one call into the JVM."""

    def __init__(self, spark: Any) -> None:
        self._jvm = jvm = spark._jvm
        datasources = jvm.org.apache.spark.sql.execution.datasources
        self._module = getattr(getattr(datasources, "PartitioningUtils$"), "MODULE$")
        self._none = getattr(getattr(jvm.scala, "None$"), "MODULE$")

    def __call__(self, paths: list[str], bases: list[str], zone: str, infer: bool = True) -> Outcome:
        """Return the types of the columns and the values of each directory; None if Spark refuses them."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        jvm = self._jvm
        converters = jvm.scala.jdk.javaapi.CollectionConverters
        listed, stops = jvm.java.util.ArrayList(), jvm.java.util.HashSet()
        for path in paths:
            listed.add(jvm.org.apache.hadoop.fs.Path(path))
        for base in bases:
            stops.add(jvm.org.apache.hadoop.fs.Path(base))
        try:
            spec = self._module.parsePartitions(
                converters.asScala(listed).toSeq(), infer, converters.asScala(stops).toSet(), self._none,
                False, True, zone, False,
            )  # fmt: skip
        except (PySparkException, Py4JJavaError):
            return None
        rows = {}
        each = spec.partitions().iterator()
        while each.hasNext():
            partition = each.next()
            rows[partition.path().toString()] = partition.values().toString()
        columns = spec.partitionColumns()
        names = [name.lower() for name in columns.fieldNames()]
        if len(set(names)) < len(names):
            return None  # as Spark does when it goes on to make the table
        return [field.dataType().catalogString() for field in columns.fields()], rows


def ours(paths: list[str], bases: list[str], zone: str, infer: bool = True) -> Outcome:
    """Return the same from forebay, in the text of Spark's internal rows."""
    try:
        found = partitions(paths, bases, timezone=zone, type_inference=infer)
    except ConfigurationError:
        return None
    rows = {path: f"[{','.join(printed(value) for value in row)}]" for path, row in found.values.items()}
    return [catalog(field.type) for field in found.schema], rows


def catalog(type_: pa.DataType) -> str:
    names = {
        pa.null(): "void", pa.int32(): "int", pa.int64(): "bigint", pa.float64(): "double", pa.string(): "string",
        pa.date32(): "date", pa.timestamp("us", tz="UTC"): "timestamp", pa.time64("us"): "time(6)",
    }  # fmt: skip
    return f"decimal({type_.precision},0)" if isinstance(type_, pa.Decimal128Type) else names[type_]


def printed(value: pa.Scalar) -> str:
    if not value.is_valid:
        return "null"
    if pa.types.is_time(value.type):
        return str(number(value) * 1000)
    return str(number(value) if pa.types.is_temporal(value.type) else value.as_py())


def number(value: pa.Scalar) -> int:
    """Return days or microseconds: Python's own types have a smaller range than Spark's."""
    return int(value.cast(pa.int32() if pa.types.is_date32(value.type) else pa.int64()).as_py())


def same(ours_: Outcome, theirs: Outcome) -> bool:
    """Whether both are equal. Doubles are compared as numbers, because Java and Python format them differently."""
    if ours_ == theirs or ours_ is None or theirs is None or ours_[0] != ["double"] or theirs[0] != ["double"]:
        return ours_ == theirs
    numbers = [
        {path: None if "null" in row else struct.pack("d", float(row[1:-1])) for path, row in rows.items()}
        for _, rows in (ours_, theirs)
    ]
    return numbers[0] == numbers[1]


@pytest.fixture(scope="session")
def partitioner(spark):
    return Partitioner(spark)


@pytest.mark.soak("America/New_York")
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", pytest.param("+05:30", marks=pytest.mark.soak)])
def test_every_unusual_value_has_sparks_type_and_value(partitioner, zone):
    wrong = {}
    for raw in VALUES:
        pair = ours([f"/t/a={raw}"], ["/t"], zone), partitioner([f"/t/a={raw}"], ["/t"], zone)
        if not same(*pair):
            wrong[raw] = pair
    assert not wrong


def test_every_pair_of_kinds_has_sparks_common_type(partitioner):
    kinds = [NULL_NAME, "1", "3000000000", "1e3", "9" * 30, "1.5", "2024-01-01", "2024-01-01 00:00:00", "12:00:00", "x"]
    wrong = {}
    for left in kinds:
        for right in kinds:
            paths = sorted({f"/t/a={left}", f"/t/a={right}"})
            pair = ours(paths, ["/t"], "UTC"), partitioner(paths, ["/t"], "UTC")
            if not same(*pair):
                wrong[left, right] = pair
    assert not wrong


numbers = st.from_regex(r"\A[+-]?[0-9]{0,25}\.?[0-9]{0,3}([eE][+-]?[0-9]{1,3})?[fdFD]?\Z")
moments = st.from_regex(r"\A[+-]?[0-9]{4,5}-[0-9]{1,2}-[0-9]{2}( [0-9]{2}(:|%3A)[0-9]{2}:[0-9]{2}(\.[0-9]{1,2})?)?\Z")
texts = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="/\x00"), min_size=1, max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.one_of(numbers, moments, texts, st.sampled_from(VALUES)).filter(lambda text: text not in ("", ".", "..")))
def test_any_value_has_sparks_type_and_value(partitioner, raw):
    pair = ours([f"/t/a={raw}"], ["/t"], "UTC"), partitioner([f"/t/a={raw}"], ["/t"], "UTC")
    assert same(*pair), pair


CASTS = {
    "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ntz": pa.timestamp("us"), "date": pa.date32(),
}  # fmt: skip
ZONED = ["+02:60", "+0200:30", "localtime", "posix/Europe/Paris", "right/UTC", "Factory", "UTC+1", "+1:00", " PST", "Z"]
CAST = ["-2024-01-01", "-0001-06-01 12:00:00", "+12024-01-01", "0000-01-01", "294248-01-01", "-290309-01-01", "999999",
        "9999999-01-01", "5881580-07-12", "2024-1-5", "2024-01-05T", "2024-06-01 12", "2024-06-01 12:00:00.1234567",
        "2024-06-01 24:00:00", "1800-01-01", *(f"2024-06-01 12:00:00{name}" for name in ZONED)]  # fmt: skip


@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris"])
@pytest.mark.parametrize("wanted", CASTS)
def test_a_value_of_a_column_that_the_user_typed_is_sparks_cast_of_it(spark, wanted, zone):
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        frame = spark.createDataFrame([(text,) for text in CAST], "t string")
        instant = "unix_date(cast(t as date))" if wanted == "date" else f"unix_micros(cast(t as {wanted}))"
        if wanted == "timestamp_ntz":
            spark.conf.set("spark.sql.session.timeZone", "UTC")
            instant = "unix_micros(cast(cast(t as timestamp_ntz) as timestamp))"
        expected = [row[0] for row in frame.selectExpr(instant).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.unset("spark.sql.ansi.enabled")
    assert [typed(text, CASTS[wanted], zone) for text in CAST] == expected


def typed(text: str, type_: pa.DataType, zone: str) -> int | None:
    """Return the days or microseconds of a value for a column of the user's type; None if it is refused."""
    try:
        found = partitions([f"/t/a={text}"], ["/t"], timezone=zone, types={"a": type_})
    except ConfigurationError:
        return None
    return number(found.values[f"/t/a={text}"][0])


parts = st.sampled_from(
    ["a=1", "a=2", "a=x", "A=3", "b=1.5", "b=7", "sub", "x y", "_temporary", "a=", "=1", f"a={NULL_NAME}"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.lists(parts, max_size=3), min_size=1, max_size=4),
    base=st.sampled_from(["/t", "/other", "/t/a=1"]),
    infer=st.booleans(),
)
def test_any_directories_have_sparks_columns_or_its_refusal(partitioner, names, base, infer):
    paths = sorted({"/".join(["/t", *name]) for name in names})
    assert same(ours(paths, [base], "UTC", infer), partitioner(paths, [base], "UTC", infer))
