# SPDX-License-Identifier: Apache-2.0
"""A random search: the table that `materialize` makes of a random changelog and query is right, or it is refused.

A history of rows is written as a changelog, of which some things are declared and hold: images, order, history. Random
operators of Spark and of forebay follow. A model applies the same operators to the rows of the true table. A sink of
upserts and deletes reads the partitions of the result side by side.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as users write it
from pyspark.sql.types import StructType

from forebay.changelog import (
    changelog_join,
    from_is_deleted,
    latest_per_key,
    materialize,
    normalize,
    to_is_deleted,
)
from forebay.errors import ConfigurationError, DataError, unwrap
from forebay.keys import key_by
from forebay.spark.changelog import strategy
from forebay.spark.changelog.converting import declare
from forebay.spark.conform import arrow_schema
from forebay.spark.keys import operators
from forebay.table.changelog.operators import latest
from forebay.table.changelog.shape import ChangeTraits, Images

CASES = 30
SEED = 36
NUMBERED = re.compile(r"#\d+L?|\([^)]*\)|\[[^]]*\]")  # columns of plans, for which reasons differ


@dataclass
class History:
    """A changelog and the rows of its table.

    Args:
        events: The rows of the changelog, in an order that a reader of all splits may see.
        columns: Its schema.
        rows: The rows of the table at the end.
        traits: What is declared; None: nothing.
        ordered: Whether all changes of a key are in one split.
        images: Which rows the changes hold, whether or not that is declared.
    """

    events: list[tuple]
    columns: str
    rows: list[dict]
    traits: ChangeTraits | None
    ordered: bool
    images: Images

    def table(self):
        schema = arrow_schema(StructType.fromDDL(self.columns))
        values = zip(*self.events, strict=True)
        return pa.table([pa.array(one, kind.type) for one, kind in zip(values, schema, strict=True)], schema=schema)

    def declared(self, df):
        return df if self.traits is None else declare(df, self.traits, ("id",), ordered=self.ordered)


def history(rng, first=0, *, log_name="t", emptied=False):
    """A random history of up to six rows, whose ids begin with `first`; with `emptied` they are deleted at the end."""
    images = rng.choice([Images.FULL, Images.FULL, Images.FULL, Images.UPSERT, *([] if emptied else [Images.APPEND])])
    declared = rng.random() < 0.9
    one_log = rng.random() < 0.8 or not declared  # `_sequence` says of itself that it is comparable
    repeats, late = rng.random() < 0.3, rng.random() < 0.3
    table, log = {}, []
    for sequence in range(1, rng.randint(9, 25)):
        key = first + rng.randrange(6)
        split = f"t/{key % 2}" if one_log else rng.choice(["a/0", "b/0"])
        new = {"id": key, "level": rng.randrange(5), "s": rng.choice(["open", "closed"]), "v": rng.randrange(9)}
        if key not in table:
            table[key] = new
            log.append((split, sequence, [(new, "insert")]))
        elif images is not Images.APPEND and rng.random() < 0.3:
            log.append((split, sequence, [(table.pop(key), "delete")]))
        elif images is not Images.APPEND:
            log.append((split, sequence, [(table[key], "update_preimage"), (new, "update_postimage")]))
            table[key] = new
    if emptied:
        log += [(f"t/{key % 2}", 99, [(row, "delete")]) for key, row in table.items()]
        table = {}
    if late:
        log = log[rng.randrange(len(log)) :]
    if repeats:
        start = rng.randrange(len(log))
        log += [entry for entry in log[start:] if entry[2][0][0]["id"] >= 0]
    positions, sequenced, events, counts = rng.random() < 0.7, rng.random() < 0.4, [], Counter()
    for split, number, rows in log:
        counts[split] += 1
        for row, kind in rows:
            if images is Images.UPSERT and kind == "update_preimage":
                continue
            shown = row if images is not Images.UPSERT or kind != "delete" else dict.fromkeys(row) | {"id": row["id"]}
            event = (*shown.values(), kind)
            event += (split, counts[split]) if positions else ()
            # Two logs count on their own.
            events.append((split, event + ((number if one_log else counts[split],) if sequenced else ())))
    splits = {split: [event for one, event in events if one == split] for split, _ in events}
    merged = []
    while any(splits.values()):  # another interleaving of the splits, each in its order
        split = rng.choice([one for one, left in splits.items() if left])
        merged.append(splits[split].pop(0))
    columns = "id long, level long, s string, v long, _change_type string"
    columns += ", _split string, _pos long" if positions else ""
    columns += ", _sequence long" if sequenced else ""
    touched = {row["id"] for _, _, rows in log for row, _ in rows}
    traits = ChangeTraits(images, not repeats and not late, one_log, log=log_name if one_log else None)
    return History(
        merged,
        columns,
        [row for key, row in table.items() if key in touched],
        traits if declared else None,
        one_log,
        images,
    )


INVALID = None
"""Over the rows of a table the operator has no meaning, so it must be refused."""


@dataclass
class Query:
    """A query and the rows that it should have."""

    df: DataFrame
    rows: list[dict] | None
    steps: list[str] = field(default_factory=list)

    @property
    def names(self):
        return set(self.df.columns)

    def unique(self, name):
        return self.rows is not None and len({row[name] for row in self.rows}) == len(self.rows)


LEVELS = [Row(n=n, title=title) for n, title in enumerate(["zero", "one", "two", "three"])]
MANY = [Row(n=1, title="uno"), Row(n=1, title="eins"), Row(n=2, title="zwei")]


@cache
def tables(spark):
    """The tables to look up: by a key, several rows of a key, by the title of the first one."""
    levels, many = spark.createDataFrame(LEVELS), spark.createDataFrame(MANY)
    levels.createOrReplaceTempView("differential_levels")
    words = spark.createDataFrame([(row.title, row.n) for row in LEVELS], "w string, x long")
    return levels, many, words


class Search:
    """Makes random queries, of streams if there is a directory for their files and states."""

    def __init__(self, spark, seed, directory=None):
        self.spark, self.rng, self.directory = spark, random.Random(seed), directory
        self.inputs, self.states = [], 0
        self.levels, self.many, self.words = tables(spark)
        self.titles = [{"n": row.n, "title": row.title} for row in LEVELS]
        self.manies = [{"n": row.n, "title": row.title} for row in MANY]

    def read(self, rows):
        """Read a history, or begin a stream of it: one file in a micro-batch, some of them written later."""
        if self.directory is None:
            return rows.declared(self.spark.createDataFrame(rows.table()))
        path = self.directory / f"input-{len(self.inputs)}"
        path.mkdir()
        table = rows.table()
        cuts = sorted(self.rng.sample(range(1, len(table)), min(len(table) - 1, self.rng.randint(0, 3))))
        parts = [table.slice(start, end - start) for start, end in pairwise([0, *cuts, len(table)])]
        self.inputs.append((path, parts))
        stream = self.spark.readStream.schema(rows.columns).option("maxFilesPerTrigger", 1).parquet(str(path))
        return rows.declared(stream)

    def write(self, first, last):
        """Write files of each input; the times of files order them."""
        for path, parts in self.inputs:
            for number in range(first, min(last, len(parts))):
                file = path / f"{number}.parquet"
                pq.write_table(parts[number], file)
                os.utime(file, (number + 1, number + 1))

    def state(self):
        """Return the arguments of a function that keeps state."""
        if self.directory is None:
            return {}
        self.states += 1
        return {"state_location": str(self.directory / f"state-{self.states}")}

    def make(self):
        """Return a random query of up to five operators, and the key of its target."""
        rng = self.rng
        united = rng.random() < 0.2
        moved = united and rng.random() < 0.5  # from one database to the other
        first = history(rng, emptied=moved)
        self.append = first.images is Images.APPEND
        query = Query(self.read(first), first.rows)
        if united:
            other = history(rng, first=0 if moved else 6, log_name="u")
            query = Query(
                query.df.unionByName(self.read(other), allowMissingColumns=True),
                first.rows + other.rows,
                ["union"],
            )
        for _ in range(rng.randint(0, 5)):
            step = rng.choice(STEPS)
            after = step(self, query)
            if after is not None:
                query = Query(after[0], after[1], [*query.steps, step.__name__])
        columns = [name for name in query.df.columns if not name.startswith("_")]
        wanted = ["id"] if "id" in columns and rng.random() < 0.6 else rng.sample(columns, min(len(columns), 2))
        return query, wanted[: rng.randint(1, 2)]


def where_s(search, query):
    if "s" in query.names:
        return query.df.where("s = 'open'"), query.rows and [row for row in query.rows if row["s"] == "open"]
    return None


def where_level(search, query):
    if "level" in query.names:
        kept = query.rows and [row for row in query.rows if row["level"] is not None and row["level"] > 1]
        return query.df.where("level > 1"), kept
    return None


def where_id(search, query):
    if "id" in query.names:
        return query.df.where("id <> 1"), query.rows and [row for row in query.rows if str(row["id"]) != "1"]
    return None


def without_old_rows(search, query):
    if "_change_type" in query.names:
        return query.df.where("_change_type <> 'update_preimage'"), query.rows
    return None


def where_pos(search, query):
    if "_pos" in query.names and not search.append:
        return query.df.where("_pos % 2 = 0"), INVALID
    return None


def without_kind(search, query):
    if "_change_type" in query.names and search.rng.random() < 0.3:
        return query.df.drop("_change_type"), query.rows if search.append else INVALID
    return None


def drop_v(search, query):
    if "v" in query.names:
        return query.df.drop("v"), query.rows and [{k: v for k, v in row.items() if k != "v"} for row in query.rows]
    return None


def rename_s(search, query):
    if "s" in query.names and "state" not in query.names:
        rows = query.rows and [{("state" if k == "s" else k): v for k, v in row.items()} for row in query.rows]
        return query.df.withColumnRenamed("s", "state"), rows
    return None


def text_id(search, query):
    if dict(query.df.dtypes).get("id") == "bigint":
        rows = query.rows and [row | {"id": str(row["id"])} for row in query.rows]
        return query.df.withColumn("id", F.col("id").cast("string")), rows
    return None


def next_level(search, query):
    if "level" in query.names:
        rows = query.rows and [row | {"level": row["level"] + 1} for row in query.rows]
        return query.df.withColumn("level", F.col("level") + 1), rows
    return None


def drop_places(search, query):
    return query.df.drop(*search.rng.choice([("_pos",), ("_sequence",), ("_pos", "_split")])), query.rows


def computed_pos(search, query):
    if "_pos" in query.names and search.rng.random() < 0.4:
        return query.df.withColumn("_pos", -F.col("_pos")), query.rows
    return None


def lookup(search, query):
    """A join with a table, with every hint."""
    if "level" not in query.names or "n" in query.names or "title" in query.names:
        return None
    rng = search.rng
    several = rng.random() < 0.25
    table, found = (search.many, search.manies) if several else (search.levels, search.titles)
    if not several and rng.random() < 0.6:
        table = key_by(table, "n", cdc=True)
    if not several and rng.random() < 0.3:
        inner = table.join(F.broadcast(search.words), table["title"] == search.words["w"])
        table = inner.select("n", "title") if rng.random() < 0.5 else inner.drop("w", "x")
    hints = rng.choice(["", "broadcast", "broadcast", "broadcast", "merge", "broadcast merge", "shuffle_hash"])
    for hint in hints.split():
        table = table.hint(hint)
    if rng.random() < 0.1:
        table = F.broadcast(table).union(table.limit(0))
    how = rng.choice(["inner", "left", "left_semi", "left_anti"])
    df = query.df.join(table, query.df["level"] == table["n"], how)
    if query.rows is None:
        return df, None
    rows = []
    for row in query.rows:
        matches = [one for one in found if one["n"] == row["level"]]
        if how in ("left_semi", "left_anti"):
            rows += [row] if bool(matches) == (how == "left_semi") else []
        else:
            rows += [row | one for one in matches]
            rows += [row | {"n": None, "title": None}] if how == "left" and not matches else []
    return df, rows


def in_subquery(search, query):
    if "level" in query.names and search.rng.random() < 0.5:
        df = query.df.where(F.expr("level IN (SELECT n FROM differential_levels)"))
        return df, query.rows and [row for row in query.rows if row["level"] in range(4)]
    return None


def explode(search, query):
    if "level" in query.names and "e" not in query.names:
        df = query.df.withColumn("e", F.explode(F.array(F.col("level"), F.col("level") % 2)))
        return df, query.rows and [row | {"e": e} for row in query.rows for e in (row["level"], row["level"] % 2)]
    return None


def self_union(search, query):
    name = search.rng.choice(["id", "level"])
    if name in query.names:
        condition = F.col(name).cast("long") > 1
        return query.df.where(condition).unionByName(query.df.where(~condition)), query.rows
    return None


def shuffled(search, query):
    return search.rng.choice([lambda df: df.repartition(3), lambda df: df.repartition(F.col(df.columns[0]))])(
        query.df
    ), query.rows


def narrowed(search, query):
    return query.df.coalesce(1), query.rows


def ordered(search, query):
    if "s" in query.names:
        return search.rng.choice([query.df.orderBy("s"), query.df.sortWithinPartitions("s")]), query.rows
    return None


def distinct_ids(search, query):
    if "id" in query.names and (query.unique("id") or not search.append) and search.rng.random() < 0.5:
        return query.df.dropDuplicates(["id"]), query.rows if query.unique("id") else INVALID
    return None


def ranked(search, query):
    if "id" in query.names and "v" in query.names and not search.append and search.rng.random() < 0.3:
        return query.df.withColumn("r", F.expr("row_number() OVER (PARTITION BY level ORDER BY v)")), INVALID
    return None


def counted(search, query):
    if "level" in query.names and search.rng.random() < 0.5:
        rows = query.rows and [{"level": k, "n": n} for k, n in Counter(row["level"] for row in query.rows).items()]
        return query.df.groupBy("level").agg(F.count("*").alias("n")), rows
    return None


def signed(search, query):
    if "level" in query.names and "_change_type" in query.names and search.rng.random() < 0.6:
        sign = F.when(F.col("_change_type").isin("insert", "update_postimage"), 1).otherwise(-1)
        df = query.df.groupBy("level").agg(F.sum(sign).alias("n")).where("n > 0")
        return df, query.rows and [{"level": k, "n": n} for k, n in Counter(r["level"] for r in query.rows).items()]
    return None


def whole(search, query):
    if "id" in query.names and query.unique("id"):
        function = search.rng.choice([normalize, materialize, latest_per_key])
        return function(query.df, "id", **search.state()), query.rows
    return None


def without_preimages(search, query):
    if "id" in query.names and query.unique("id") and search.rng.random() < 0.5:
        return latest_per_key(query.df, "id", preimages=False, **search.state()), query.rows
    return None


def flagged(search, query):
    if {"id", "_change_type"} <= query.names and "is_deleted" not in query.names:
        return from_is_deleted(to_is_deleted(query.df), key="id"), query.rows
    return None


def keyed_by_level(search, query):
    if "level" in query.names and search.rng.random() < 0.5:
        return key_by(query.df, "level", cdc=search.rng.random() < 0.5 and query.unique("level")), query.rows
    return None


def joined(search, query):
    """A join with another changelog."""
    if "level" not in query.names or "other" in query.names or search.rng.random() < 0.5:
        return None
    rng = search.rng
    other = history(rng, first=6)
    right = search.read(other).select(
        "level",
        F.col("id").alias("other"),
        *(name for name in ("_change_type", "_split", "_pos") if name in other.columns),
    )
    if rng.random() < 0.7:
        right = normalize(right, "other", **search.state())
    rows = query.rows and [
        row | {"other": one["id"]} for row in query.rows for one in other.rows if one["level"] == row["level"]
    ]
    return changelog_join(query.df, right, "level", **search.state()), rows


STEPS = [
    where_s,
    where_level,
    where_id,
    without_old_rows,
    where_pos,
    without_kind,
    drop_v,
    rename_s,
    text_id,
    next_level,
    drop_places,
    computed_pos,
    lookup,
    lookup,
    lookup,
    in_subquery,
    explode,
    self_union,
    shuffled,
    shuffled,
    narrowed,
    ordered,
    distinct_ids,
    ranked,
    counted,
    signed,
    whole,
    whole,
    without_preimages,
    flagged,
    keyed_by_level,
    joined,
]


def applied(df, key, rng, table):
    """Apply the partitions of a changelog to a table side by side, each in its order."""
    partitions = {}
    for row in df.withColumn("_at", F.spark_partition_id()).collect():
        partitions.setdefault(row["_at"], []).append(row.asDict())
    while partitions:
        place = rng.choice(list(partitions))
        row = partitions[place].pop(0)
        if not partitions[place]:
            del partitions[place]
        value = tuple(row[name] for name in key)
        if row["_change_type"] in ("insert", "update_postimage"):
            table[value] = {name: cell for name, cell in row.items() if not name.startswith("_")}
        else:
            table.pop(value, None)
    return table


def streamed(search, df, key, table):
    """Apply a stream to a table, and start it again after the first half of its files."""
    for first, last in [(0, 2), (2, 9)]:
        search.write(first, last)
        query = (
            df.writeStream.foreachBatch(lambda batch, _: applied(batch, key, search.rng, table) and None)
            .outputMode("update")
            .option("checkpointLocation", str(search.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def outcome(spark, seed, directory=None):
    """Return (`right` | `wrong` | `refused: why`, what) of one random case."""
    search = Search(spark, seed, directory)
    table: dict[tuple[object, ...], dict[str, object]] = {}
    what = f"seed {seed}"
    try:
        query, key = search.make()
        what += f": {' | '.join(query.steps)} by {key}"
        result = materialize(query.df, key=key, **search.state())
        if directory is None:
            applied(result, key, search.rng, table)
        else:
            streamed(search, result, key, table)
    except ConfigurationError as error:
        return f"refused: {' '.join(re.sub(NUMBERED, '', error.message).split()[:4])}", what
    except DataError:
        return "refused when run", what
    except (PySparkException, AssertionError) as error:
        if isinstance(unwrap(error), DataError):
            return "refused when run", what
        if directory and isinstance(error, AnalysisException):
            return "not a stream of Spark's", what
        raise AssertionError(what) from error
    if query.rows is INVALID:
        return "wrong", what
    wanted = {}
    for row in query.rows:
        wanted.setdefault(tuple(row[name] for name in key), []).append(row)
    wrong = table.keys() != wanted.keys() or any(table[value] not in rows for value, rows in wanted.items())
    return ("wrong" if wrong else "right"), f"{what}: {sorted(table.values(), key=repr)} instead of {wanted}"


@pytest.fixture
def one_partition(spark):
    """A session for queries of a few rows: one task, and no code is generated for them."""
    settings = {
        "spark.sql.leafNodeDefaultParallelism": "1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name in settings:
        spark.conf.unset(name)


def search_for_wrong_tables(spark, seeds, record_property, directory=None):
    outcomes, wrong = Counter(), []
    for seed in seeds:
        if directory is not None:
            (directory / str(seed)).mkdir()
        verdict, what = outcome(spark, seed, directory and directory / str(seed))
        outcomes[verdict] += 1
        if verdict == "wrong":
            wrong.append(what)
    record_property("report", "; ".join(f"{count} {verdict}" for verdict, count in outcomes.most_common()))
    assert not wrong, "\n".join(wrong[:5])
    return outcomes


def test_no_table_is_wrong(one_partition, tasks_here, record_property):
    """C7, C9, C16: each table of a random query is the right one, or the query is refused."""
    base = SEED * 100_000
    outcomes = search_for_wrong_tables(one_partition, range(base, base + CASES), record_property)
    assert outcomes["right"] > CASES // 5, outcomes  # the search must not be empty


@pytest.mark.soak
def test_no_table_of_a_restarted_stream_is_wrong(one_partition, tmp_path, record_property):
    outcomes = search_for_wrong_tables(one_partition, range(SEED, SEED + 12), record_property, tmp_path)
    assert outcomes["right"] >= 2, outcomes


def broadcasts_any_hint(patch):
    patch.setattr(operators, "_broadcast_side", lambda node, how: "right")


def ignores_logs(patch):
    changes = operators._changes
    patch.setattr(operators, "_changes", lambda *given: replace(changes(*given), comparable=True))


def unions_one_log(patch):
    united = operators._united
    patch.setattr(operators, "_united", lambda *given, one_log: united(*given, one_log=True))


def takes_upserts_for_full(patch):
    changes = operators._changes

    def full(*given):
        found = changes(*given)
        return replace(found, images=Images.FULL) if found.images is Images.UPSERT else found

    patch.setattr(operators, "_changes", full)


def lets_retractions_win(patch):
    """At one position, as `>=` instead of `>` would."""
    last_of = latest.last_of  # type: ignore[attr-defined]  # replaced here
    patch.setattr(
        latest,
        "last_of",
        lambda codes, size, which, ranks, adds, *rest: last_of(codes, size, which, ranks, -adds, *rest),
    )


def counts_unknown_histories(patch):
    changes = operators._changes
    patch.setattr(operators, "_changes", lambda *given: replace(changes(*given), complete=True))


def filters_any_changes(patch):
    patch.setattr(operators, "_left_out", lambda before, *_, **__: before.changes)


def takes_any_key(patch):
    patch.setattr(strategy._Proof, "problem", None)


MUTANTS = {
    broadcasts_any_hint: 52,
    ignores_logs: 279,
    unions_one_log: 91,
    takes_upserts_for_full: 1,
    lets_retractions_win: 13,
    counts_unknown_histories: 61,
    filters_any_changes: 77,
    takes_any_key: 2,
}
"""What the search must notice, and a seed with which it does."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
@pytest.mark.soak(but=["broadcasts_any_hint", "unions_one_log", "lets_retractions_win", "filters_any_changes"])
def test_the_search_notices(one_partition, tasks_here, monkeypatch, mutant):
    mutant(monkeypatch)
    assert outcome(one_partition, MUTANTS[mutant])[0] == "wrong"


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_no_table_of_many_is_wrong(one_partition, part, record_property):
    base = int(os.environ.get("FOREBAY_SEED", "1")) * 10_000_000 + part * 1_000
    search_for_wrong_tables(one_partition, range(base, base + 1_000), record_property)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
def test_no_table_of_many_restarted_streams_is_wrong(one_partition, part, tmp_path, record_property):
    base = int(os.environ.get("FOREBAY_SEED", "1")) * 1_000_000 + part * 100
    search_for_wrong_tables(one_partition, range(base, base + 100), record_property, tmp_path)
