# SPDX-License-Identifier: Apache-2.0
"""Reading in Spark batch queries, with real Spark."""

from __future__ import annotations

import json
import os
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from forebay.errors import ConfigurationError, DataError, unwrap
from forebay.framework.arrow.row_packer import Batch
from forebay.framework.runtime.clients import cached
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Split
from forebay.options import Secret, option
from forebay.spark.batch import BatchReader, Readable
from forebay.spark.data_source import format_class, installed_format
from forebay.spark.processes import dumps
from forebay.spark.register import read, register
from forebay.spark.session import PickledClass, Session

N = pa.schema({"n": pa.int64()})


class Countdown(SimpleSource):
    """The smallest source."""

    start: int = 10

    def schema(self):
        return N

    def read(self, split):
        for i in range(split.position or 0, self.start):
            yield {"n": self.start - i}


class Regions(SimpleSource):
    """Splits of 5 rows each; every row contains its split and process."""

    count: int = 4

    def schema(self):
        return pa.schema({"region": pa.string(), "n": pa.int64(), "pid": pa.int64()})

    def splits(self):
        return [f"r{number}" for number in range(self.count)]

    def read(self, split):
        for n in range(split.position or 0, 5):
            yield {"region": split.id, "n": n, "pid": os.getpid()}


class Growing(SimpleSource):
    """An unbounded source over a file that holds how many rows there are."""

    bounded = False
    file: Path

    def schema(self):
        return N

    def latest(self, split):
        return int(self.file.read_text())

    def read(self, split):
        for n in range(split.position or 0, split.end or int(self.file.read_text())):
            yield Batch([{"n": n}], n + 1)


class Marked(SimpleSource):
    """Records every call of `schema`, `splits` and `read` in a directory; can fail its first attempt."""

    log: Path
    fail_first: bool = False

    def note(self, what):
        (self.log / f"{what}-{uuid.uuid4().hex}").touch()
        return len(list(self.log.glob(f"{what}-*")))

    def schema(self):
        self.note("schema")
        return N

    def splits(self):
        self.note("splits")
        return ["a"]

    def read(self, split):
        attempt = self.note("read")
        for n in range(split.position or 0, 1000):
            if n == 500 and attempt == 1 and self.fail_first:
                raise OSError("broken pipe")
            yield {"n": n}


class Wide(SimpleSource):
    """The schema and rows of a test, as Arrow IPC in a file."""

    file: Path

    def table(self):
        return pa.ipc.open_stream(self.file.read_bytes()).read_all()

    def schema(self):
        return self.table().schema

    def read(self, split):
        yield self.table()


def wide(spark, tmp_path, table, **options):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    file = tmp_path / "table.arrow"
    file.write_bytes(sink.getvalue())
    return read(spark, Wide(file=file), **options)


def numbers(frame):
    return [row[0] for row in frame.collect()]


def calls(path, what):
    return len(list(path.glob(f"{what}-*")))


def test_a_class_becomes_a_format_and_its_fields_options(spark):
    assert register(spark, Countdown) == ("countdown",)
    assert numbers(spark.read.format("countdown").option("start", 5).load()) == [5, 4, 3, 2, 1]
    assert numbers(spark.read.format("COUNTDOWN").option("START", 2).load()) == [2, 1]


def test_a_source_made_in_python_is_read_without_register(spark):
    assert numbers(read(spark, Countdown(start=3))) == [3, 2, 1]


def test_a_class_of_a_function_with_what_it_encloses_becomes_a_format(spark):
    offset = 100

    def shifted(n):
        return n + offset

    class Shifted(SimpleSource):
        """Uses a local function, a nested class and another class of this module."""

        inner: int = 2

        def schema(self):
            return N

        def read(self, split):
            for row in Countdown(start=self.inner).read(split):
                yield {"n": shifted(row["n"])}

    register(spark, Shifted)
    assert numbers(spark.read.format("shifted").load()) == [102, 101]


def test_every_kind_of_option_of_a_class_that_workers_cannot_import_is_understood(spark):
    class Flavour(Enum):
        SWEET = "sweet"
        SOUR = "sour"

    class Options(SimpleSource):
        flavour: Flavour = Flavour.SWEET
        url: str = option(doc="address")
        token: Secret = option(Secret("none"), doc="key")
        names: list[str] = option(default_factory=list, doc="names")
        more: dict[str, str] = option(prefix="more.", doc="passed on")
        day: date | None = None

        def schema(self):
            return pa.schema({"values": pa.string()})

        def read(self, split):
            values = [self.flavour.value, self.url, self.token.reveal(), self.names, self.more, str(self.day)]
            yield {"values": json.dumps(values)}

    # As in a file without `from __future__ import annotations`: names inside functions are not looked up.
    Options.__annotations__["flavour"] = Flavour
    register(spark, Options)
    frame = (
        spark.read.format("options")
        .option("url", "http://x")
        .option("flavour", "sour")
        .option("token", "t0psecret")
        .option("names", '["a","b"]')
        .option("more.fetch.size", 7)
        .option("day", "2024-02-29")
        .load()
    )
    assert json.loads(frame.first()[0]) == [
        "sour",
        "http://x",
        "t0psecret",
        ["a", "b"],
        {"fetch.size": "7"},
        "2024-02-29",
    ]


def test_a_class_with_a_cached_client_and_its_own_split_class_travels(spark):
    class Page(Split):
        size: int

    class Paged(SimpleSource):
        split_class = Page

        @cached
        def client(self):
            return {"made": os.getpid()}

        def schema(self):
            return pa.schema({"size": pa.int64(), "same": pa.bool_()})

        def splits(self):
            return [Page("p1", size=10), Page("p2", size=20)]

        def read(self, split):
            yield {"size": split.size, "same": self.client["made"] == os.getpid()}

    register(spark, Paged)
    rows = spark.read.format("paged").load().collect()
    assert sorted((row.size, row.same) for row in rows) == [(10, True), (20, True)]


def test_splits_spread_over_one_task_per_core_by_default_and_over_num_partitions_on_demand(spark):
    register(spark, Regions)
    reader = spark.read.format("regions").option("count", 7)
    assert reader.load().rdd.getNumPartitions() == 2
    frame = reader.option("numPartitions", 5).load()
    assert frame.rdd.getNumPartitions() == 5
    wanted = sorted((f"r{split}", n) for split in range(7) for n in range(5))
    assert sorted((row.region, row.n) for row in frame.collect()) == wanted


def test_no_split_is_no_row(spark):
    register(spark, Regions)
    frame = spark.read.format("regions").option("count", 0).load()
    assert frame.count() == 0
    assert frame.columns == ["region", "n", "pid"]


def test_a_split_without_rows_is_no_row(spark):
    assert read(spark, Countdown(start=0)).collect() == []


def test_limit_stops_early(spark):
    class Endless(SimpleSource):
        def schema(self):
            return N

        def read(self, split):
            n = 0
            while True:
                yield {"n": n}
                n += 1

    assert numbers(read(spark, Endless(), max_rows_per_batch=100).limit(5)) == [0, 1, 2, 3, 4]


def test_a_second_attempt_gives_the_same_rows(spark, tmp_path):
    frame = read(spark, Marked(log=tmp_path, fail_first=True))
    assert sorted(numbers(frame)) == list(range(1000))
    assert calls(tmp_path, "read") == 2


def test_every_action_sees_the_snapshot_of_its_load(spark, tmp_path):
    file = tmp_path / "rows"
    file.write_text("3")
    register(spark, Growing)
    frame = spark.read.format("growing").option("file", str(file)).load()
    assert frame.count() == 3
    file.write_text("5")
    assert sorted(numbers(frame)) == [0, 1, 2]
    again = spark.read.format("growing").option("file", str(file)).load()
    assert sorted(numbers(again)) == [0, 1, 2, 3, 4]


def test_the_schema_is_asked_for_once_per_load_by_the_host_and_the_splits_once(spark, tmp_path):
    register(spark, Marked)
    frame = spark.read.format("marked").option("log", str(tmp_path)).load()
    assert calls(tmp_path, "schema") == 1
    frame.count()
    frame.count()
    assert calls(tmp_path, "splits") == 1
    assert calls(tmp_path, "read") == 2


def test_an_inferred_schema_holds_for_the_whole_read(spark, tmp_path):
    class Inferring(SimpleSource):
        """Infers a column per line of a file; keeps a schema it is given."""

        file: Path
        known: list[str] | None = None

        def schema(self):
            return pa.schema([(name, pa.int64()) for name in self.known or self.file.read_text().split()])

        def with_schema(self, schema):
            return type(self)(file=self.file, known=schema.names)

        def read(self, split):
            yield dict.fromkeys(self.schema().names, 1)

    file = tmp_path / "columns"
    file.write_text("a b")
    frame = read(spark, Inferring(file=file))
    file.write_text("a b c")
    assert frame.collect() == [(1, 1)]
    assert frame.columns == ["a", "b"]


def test_nothing_of_the_planner_travels_with_the_reader():
    reader = BatchReader(Readable(Countdown(), HostOptions(), ("n",), 2), N)
    assert vars(cloudpickle.loads(cloudpickle.dumps(reader))) == {}
    (partition,) = reader.partitions()
    again = cloudpickle.loads(cloudpickle.dumps(partition))
    rows = [row["n"] for batch in BatchReader.__new__(BatchReader).read(again) for row in batch.to_pylist()]
    assert rows == list(range(10, 0, -1))


def test_filters_are_not_taken():
    # Spark 4.2 and 4.3 mix up the filters of several scans of one load(): wrong results without an error.
    assert BatchReader.pushFilters is DataSourceReader.pushFilters


def test_a_temp_view_reads_with_its_options(spark):
    register(spark, Countdown)
    spark.sql("CREATE OR REPLACE TEMP VIEW down USING countdown OPTIONS (start 3)")
    assert [row[0] for row in spark.sql("SELECT n * 10 FROM down WHERE n < 3 ORDER BY n").collect()] == [10, 20]


def test_path_and_paths_come_from_load(spark):
    class Paths(SimpleSource):
        path: str | None = None
        paths: list[str] | None = None

        def schema(self):
            return pa.schema({"values": pa.string()})

        def read(self, split):
            yield {"values": json.dumps([self.path, self.paths])}

    register(spark, Paths)
    reader = spark.read.format("paths")
    assert json.loads(reader.load("/d/a b,c").first()[0]) == ["/d/a b,c", None]
    assert json.loads(reader.load(["/d/1", "/d/2,3"]).first()[0]) == [None, ["/d/1", "/d/2,3"]]


@pytest.mark.soak
def test_union_join_and_filters_of_one_load_give_the_right_rows(spark):
    frame = read(spark, Countdown(start=10))
    assert frame.filter("n = 3").count() == 1
    assert frame.count() == 10
    assert sorted(numbers(frame.filter("n = 3").union(frame.filter("n = 5")))) == [3, 5]
    assert frame.alias("a").join(frame.alias("b"), "n").count() == 10


NAMES = [
    "plain",
    "with space",
    "a.b",
    "üñí 🎈",
    "line\nbreak",
    "per%2Fcent",
    "quo`te",
    'dou"ble',
    "comma,semi;",
    "tab\t",
]


def test_any_column_name_arrives_as_it_is(spark, tmp_path):
    table = pa.table({name: [number] for number, name in enumerate(NAMES)})
    frame = wide(spark, tmp_path, table)
    assert frame.columns == NAMES
    assert tuple(frame.first()) == tuple(range(len(NAMES)))


def test_names_that_differ_in_case_alone_are_two_columns(spark, tmp_path):
    frame = wide(spark, tmp_path, pa.table({"a": [1], "A": [2]}))
    assert tuple(frame.first()) == (1, 2)


def test_every_type_arrives_with_its_value(spark, tmp_path):
    at = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    local = datetime(2024, 2, 29, 12, 30)
    table = pa.table(
        {
            "bool": pa.array([True, None]),
            "u8": pa.array([255, None], pa.uint8()),
            "u64": pa.array([2**64 - 1, None], pa.uint64()),
            "half": pa.array([0.5, None], pa.float16()),
            "text": pa.array(["ä", None], pa.large_string()),
            "view": pa.array(["ä", None], pa.string_view()),
            "words": pa.array(["ä", None]).dictionary_encode(),
            "bytes": pa.array([b"\x00", None], pa.binary(1)),
            "day": pa.array([at.date(), None], pa.date64()),
            "at": pa.array([at, None], pa.timestamp("us", "America/New_York")),
            "local": pa.array([local, None], pa.timestamp("s")),
            "money": pa.array([Decimal("-1.05"), None], pa.decimal256(10, 2)),
            "nested": pa.array(
                [{"list": [{"x": 1}], "map": [("k", "v")]}, None],
                pa.struct(
                    [
                        ("list", pa.large_list(pa.struct([pa.field("x", pa.uint16(), nullable=False)]))),
                        ("map", pa.map_(pa.large_string(), pa.large_string())),
                    ]
                ),
            ),
            "nothing": pa.nulls(2),
        }
    )
    first, second = wide(spark, tmp_path, table).select("*").collect()
    found = first.asDict(recursive=True)
    assert found.pop("at").astimezone(UTC) == at
    assert found == {
        "bool": True,
        "u8": 255,
        "u64": Decimal(2**64 - 1),
        "half": 0.5,
        "text": "ä",
        "view": "ä",
        "words": "ä",
        "bytes": bytearray(b"\x00"),
        "day": at.date(),
        "local": local,
        "money": Decimal("-1.05"),
        "nested": {"list": [{"x": 1}], "map": {"k": "v"}},
        "nothing": None,
    }
    assert all(value is None for value in second)


def test_big_batches_are_cut_and_all_rows_arrive(spark, tmp_path):
    table = pa.table({"n": range(10_000)})
    frame = wide(spark, tmp_path, table, max_rows_per_batch=999, max_bytes_per_batch="4k")
    assert frame.selectExpr("count(*)", "sum(n)").first() == (10_000, sum(range(10_000)))


def test_columns_are_chosen_by_the_option(spark, tmp_path):
    table = pa.table({"a": [1], "b": ["x"], "c": [2.0]})
    frame = wide(spark, tmp_path, table, columns=["c", "a"])
    assert frame.columns == ["c", "a"]
    assert tuple(frame.first()) == (2.0, 1)


def test_no_column_and_columns_in_another_case_mean_what_they_mean_in_process(spark):
    assert read(spark, Regions(), columns=["N", "Region"]).columns == ["n", "region"]
    for wrong, why in (([], "names no column"), (["n", "N"], "twice"), (["nix"], "no column 'nix'")):
        with pytest.raises(Exception, match=why) as caught:
            read(spark, Regions(), columns=wrong)
        error = unwrap(caught.value)
        assert (type(error), error and error.option) == (ConfigurationError, "columns")


def test_metadata_that_is_no_text_does_not_reach_spark(spark, tmp_path):
    field = pa.field("n", pa.int64(), metadata={b"odd\xff": b"\xff"})
    table = pa.table([[1]], schema=pa.schema([field], metadata={b"\xff": b"\xfe"}))
    assert wide(spark, tmp_path, table).collect() == [(1,)]


def test_columns_as_text_are_a_list(spark):
    register(spark, Regions)
    frame = spark.read.format("regions").option("columns", "n, region").load()
    assert frame.columns == ["n", "region"]
    assert frame.count() == 20


def test_a_source_that_can_narrow_itself_is_asked_to(spark):
    class Narrow(SimpleSource):
        only: tuple[str, ...] = ()

        def schema(self):
            return pa.schema([(name, pa.string()) for name in self.only or ("a", "b")])

        def with_columns(self, columns):
            return type(self)(only=columns)

        def read(self, split):
            yield {name: ",".join(self.only) for name in self.schema().names}

    assert read(spark, Narrow(), columns=["b"]).collect() == [("b",)]


def test_a_user_schema_that_is_the_sources_own_is_accepted(spark):
    register(spark, Regions)
    frame = spark.read.schema("pid long, region string, n long").format("regions").load()
    assert frame.columns == ["pid", "region", "n"]
    assert frame.filter("region = 'r1' and n = 2").count() == 1


def test_a_user_schema_goes_to_a_source_that_takes_one(spark):
    class Typed(SimpleSource):
        kinds: dict[str, str] = option(default_factory=dict, doc="types by name")

        def schema(self):
            return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in self.kinds.items()] or [("n", "int64")])

        def with_schema(self, schema):
            return type(self)(kinds={field.name: str(field.type) for field in schema})

        def read(self, split):
            yield dict.fromkeys(self.kinds, 1)

    register(spark, Typed)
    frame = spark.read.schema("x int, y double").format("typed").load()
    assert frame.collect() == [(1, 1.0)]


def test_a_user_schema_that_does_not_fit_is_an_error_naming_the_columns(spark):
    register(spark, Regions)
    frame = spark.read.schema("region string, n string, other int").format("regions").load()
    with pytest.raises(Exception, match="ConfigurationError") as caught:
        frame.count()
    error = unwrap(caught.value)
    assert isinstance(error, ConfigurationError)
    for wanted in ("'n' is int64, not string", "'other' does not exist", "'pid' is missing"):
        assert wanted in error.message


def test_a_user_schema_and_the_option_columns_together_are_refused(spark):
    register(spark, Regions)
    frame = spark.read.schema("n long").option("columns", "n").format("regions").load()
    with pytest.raises(Exception, match="selected twice"):
        frame.count()


def test_a_null_in_a_column_that_must_not_have_one_is_an_error(spark, tmp_path):
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    table = pa.Table.from_arrays([pa.chunked_array([[1, None]])], schema=schema)
    with pytest.raises(Exception, match="must not be null") as caught:
        wide(spark, tmp_path, table).collect()
    assert isinstance(unwrap(caught.value), DataError)


def test_what_the_session_knows_is_the_default_of_the_sources_option(spark):
    class Zoned(SimpleSource):
        time_zone: str = "UTC"

        def schema(self):
            return pa.schema({"zone": pa.string()})

        def read(self, split):
            yield {"zone": self.time_zone}

    register(spark, Zoned)
    reader = spark.read.format("zoned")
    assert reader.load().first()[0] == "Asia/Tokyo"
    assert reader.option("timeZone", "Europe/Paris").load().first()[0] == "Europe/Paris"


class Zones(SimpleSource):
    """Returns the time zone of the task."""

    time_zone: str = "UTC"

    def schema(self):
        return pa.schema({"zone": pa.string()})

    def check(self):
        if "/" not in self.time_zone and self.time_zone != "UTC":
            raise ConfigurationError(f"no such zone: {self.time_zone}")

    def read(self, split):
        yield {"zone": self.time_zone}


@pytest.fixture
def session(spark):
    """A session whose settings a test may change."""
    return spark.newSession()


def test_a_task_reads_in_the_time_zone_of_its_query_not_in_the_one_of_register(session):
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    register(session, Zones)
    reader = session.read.format("zones")
    frame = reader.load()
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    for each in (frame, reader.load(), reader.schema("zone string").load()):
        assert each.collect() == [("Europe/Berlin",)]


def test_without_register_a_task_reads_in_the_time_zone_of_its_query(session):
    session.dataSource.register(format_class(PickledClass("zones", dumps(Zones, "zones")), Session()))
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    assert session.read.format("zones").load().collect() == [("Europe/Berlin",)]


def test_files_are_read_in_the_time_zone_of_the_query_with_the_resolved_schema(session, tmp_path):
    session.dataSource.register(installed_format("forebay_files"))
    (tmp_path / "f.csv").write_text("b,a\n1,2020-07-01 10:00:00\n")
    session.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    reader = session.read.options(fileFormat="csv", header="true", inferSchema="true", columns="a")
    (found,) = reader.format("forebay_files").load(str(tmp_path)).collect()
    assert found.a.astimezone(UTC) == datetime(2020, 7, 1, 12, 30, tzinfo=UTC)


def test_a_time_zone_that_the_user_gave_stays(session):
    register(session, Zones)
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    for name in ("timeZone", "TIME_ZONE"):
        assert session.read.format("zones").option(name, "UTC").load().collect() == [("UTC",)]
    assert read(session, Zones()).collect() == [("UTC",)]


def test_a_time_zone_of_the_query_that_the_source_refuses_is_an_error(session):
    register(session, Zones)
    session.conf.set("spark.sql.session.timeZone", "+05:30")
    with pytest.raises(Exception, match="no such zone") as caught:
        session.read.format("zones").load().collect()
    assert isinstance(unwrap(caught.value), ConfigurationError)


def test_no_secret_is_in_the_plan(spark):
    class Guarded(SimpleSource):
        token: Secret

        def schema(self):
            return pa.schema({"length": pa.int64()})

        def read(self, split):
            yield {"length": len(self.token.reveal())}

    register(spark, Guarded)
    frames = [
        spark.read.format("guarded").option("token", "t0psecret").load(),
        read(spark, Guarded(token=Secret("t0psecret"))),
    ]
    for frame in frames:
        assert frame.first()[0] == 9
        assert "t0psecret" not in frame._jdf.queryExecution().toString()


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_writing_is_refused_in_plain_words(spark, mode):
    register(spark, Countdown)
    with pytest.raises(Exception, match="cannot be written to") as caught:
        spark.range(1).write.format("countdown").mode(mode).save()
    error = unwrap(caught.value)
    assert (type(error), error and error.source) == (ConfigurationError, "countdown")


def test_writing_is_refused_before_any_option_is_looked_at(spark, tmp_path):
    register(spark, Countdown)
    with pytest.raises(Exception, match="cannot be written to"):
        spark.range(1).write.format("countdown").mode("append").option("topic", "x").save()
    frame = spark.readStream.format("rate").load().selectExpr("value as n")
    with pytest.raises(Exception, match="cannot be written to") as caught:
        query = frame.writeStream.format("countdown").option("checkpointLocation", str(tmp_path)).start()
        query.awaitTermination(500)
    assert isinstance(unwrap(caught.value), ConfigurationError)


def test_writing_a_stream_is_refused_in_plain_words():
    with pytest.raises(ConfigurationError, match="cannot be written to"):
        installed_format("forebay_rate")({}).streamWriter(StructType(), overwrite=False)
