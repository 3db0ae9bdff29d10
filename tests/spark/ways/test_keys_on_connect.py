# SPDX-License-Identifier: Apache-2.0
"""Keys on Spark Connect: the client sees no plan, so the schema is trusted."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, logging, sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from forebay.changelog import changelog_mode, upsert_keys, with_upsert_key
from forebay.errors import ConfigurationError
from forebay.keys import describe_keys, guarantee, key_by, keys_of
from forebay.spark.changelog.strategy import choose_strategy

said = []
class Keep(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("forebay.keys").addHandler(Keep())
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
def refused(call):
    try:
        return call().strategy
    except ConfigurationError as error:
        return error.message
keyed = key_by(spark.range(3).select("id", F.lit("x").alias("name")), "id", cdc=True)
print(json.dumps({
    "key": str(keys_of(keyed.filter("id > 0").withColumnRenamed("id", "n"))),
    "grouped": str(keys_of(keyed.groupBy("id").count())),
    "rows": keyed.count(),
    "keys": upsert_keys(keyed),
    "asserted": upsert_keys(with_upsert_key(keyed, "id")),
    "verdict": refused(lambda: choose_strategy(keyed, ["id"])),
    "vouched": refused(lambda: choose_strategy(with_upsert_key(keyed, "id"), ["id"])),
    "given": choose_strategy(keyed, ["id"], strategy="retract").strategy,
    "mode": str(changelog_mode(keyed)),
    "order": str(guarantee(keyed)),
    "shown": describe_keys(keyed),
    "said": said,
}))
spark.stop()
"""


@pytest.mark.soak
def test_the_schema_is_trusted_and_that_is_said_once(server):
    """§2.2: the key survives where only a plan would show its loss; upsert keys have to be asserted."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, server], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["key"] == "KeySpec(partition=('n',), primary=('n',), deleted=None, ordering=())"
    assert seen["grouped"] == "KeySpec(partition=('id',), primary=('id',), deleted=None, ordering=())"
    assert (seen["rows"], seen["keys"], seen["asserted"]) == (3, [], [["id"]])
    refusal = "nothing proves which change of (id) is the newest one: Spark Connect shows no plan"
    assert (seen["verdict"], seen["vouched"], seen["given"], seen["mode"]) == (refusal, refusal, "retract", "[+I, +U]")
    assert seen["order"] == "NONE: Spark Connect shows no plan"
    assert seen["shown"].splitlines() == [
        "id bigint: partition key 1 of 1, primary key 1 of 1",
        f"order: {seen['order']}",
    ]
    assert len(seen["said"]) == 1
    assert all(text.startswith("Spark Connect shows no plan") for text in seen["said"])
