# SPDX-License-Identifier: Apache-2.0
"""A streaming query goes on with its checkpoint after its state was given another number of shards."""

from __future__ import annotations

import random

import pytest

from forebay.errors import ConfigurationError
from forebay.spark.changelog.converting import from_changes
from forebay.spark.changelog.materialize import changelog_join, materialize
from forebay.table.changelog.state.reshard import reshard
from forebay.table.changelog.state.shard import OperatorState

CHANGES = "id long, v string, _change_type string"


@pytest.mark.soak
def test_a_resharded_query_goes_on(stream_of_files):
    """P4: also if Spark did not log the last micro-batch as done, and repeats it."""
    rng = random.Random(3)
    query = stream_of_files(lambda df, state: materialize(df, "id", strategy="retract", state_location=state), CHANGES)
    live, table = {}, {}

    def write(size):
        changes = []
        for _ in range(size):
            key, value = rng.randrange(40), f"v{rng.randrange(9)}"
            if key in live:
                changes.append((key, live.pop(key), "delete"))
            else:
                changes.append((key, value, "insert"))
                live[key] = value
        rng.shuffle(changes)
        query.write(changes)

    def run():
        for _, rows in sorted(query.run().items()):
            for key, value, kind, _ in rows:
                if kind == "delete":
                    table.pop(key, None)
                else:
                    table[key] = value
        assert table == live

    write(60)
    write(40)
    run()
    for shards, repeated in ((3, True), (1, False)):
        done = reshard(OperatorState(query.state, "materialize"), shards)
        assert done.after == shards
        if repeated:
            commits = query.directory / "checkpoint" / "commits"
            for path in (commits / str(done.version), commits / f".{done.version}.crc"):
                path.unlink(missing_ok=True)  # there need be no sum
        write(30)
        run()


@pytest.mark.soak
def test_a_resharded_join_goes_on_and_the_old_number_is_refused(stream_of_files):
    def transform(df, state):
        left = df.where("id < 100").selectExpr("id % 10 AS k", "v AS l", "_change_type")
        right = df.where("id >= 100").selectExpr("id % 10 AS k", "v AS r", "_change_type")
        left, right = (from_changes(side, images="append") for side in (left, right))
        return changelog_join(left, right, "k", state_location=state, shards=shards)

    shards = 2
    query = stream_of_files(transform, CHANGES)
    query.write([(number, "l", "insert") for number in range(10)])
    query.run()
    reshard(OperatorState(query.state, "changelog_join"), 5)
    query.write([(number + 100, "r", "insert") for number in range(10)])
    with pytest.raises(ConfigurationError, match="has 5 shards, not 2"):
        query.run()
    shards = 5
    (found,) = query.run().values()
    assert sorted(row[:3] for row in found) == [(number, "l", "r") for number in range(10)]
