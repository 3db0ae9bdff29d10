# SPDX-License-Identifier: Apache-2.0
"""What is declared of the changes of a DataFrame is not taken for other rows that get its schema."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as users write it
from pyspark.sql.types import StructType

from forebay.changelog import from_changes, materialize, normalize, with_upsert_key
from forebay.errors import ConfigurationError
from forebay.spark.changelog.strategy import choose_strategy

POSITIONED = "id long, s string, _change_type string, _split string, _pos long"
MOVED = [
    (1, "open", "insert", "t/0", 1),
    (1, "open", "update_preimage", "t/0", 2),
    (1, "closed", "update_postimage", "t/0", 2),
]


def test_a_schema_takes_no_declaration_to_other_rows(spark):
    """`to` gives the rows the metadata of the schema: what is declared there is not true of them."""
    undeclared = spark.createDataFrame(MOVED, POSITIONED)
    whole = from_changes(undeclared, "id", images="full", history="complete", ordered=True)
    upserts = from_changes(undeclared.where("_change_type <> 'update_preimage'"), "id")
    for rows in (undeclared.where("s = 'open'"), undeclared.repartition(3), undeclared.drop("_pos").repartition(3)):
        for schema in (whole.schema, normalize(upserts, "id").schema, with_upsert_key(whole, "id").schema):
            names = {field.name for field in schema} & {*rows.columns}
            given = rows.to(StructType([field for field in schema if field.name in names]))
            with pytest.raises(ConfigurationError, match="is declared of the changes|left out"):
                materialize(given, "id")
    assert choose_strategy(whole, ["id"]).strategy == "none"
    for same in (whole.to(whole.schema), whole.alias("a"), F.broadcast(whole), whole.where("id > 0")):
        assert choose_strategy(same, ["id"]).strategy == "none"
    assert choose_strategy(with_upsert_key(undeclared.hint("broadcast"), "id"), ["id"]).strategy == "none"
    assert choose_strategy(from_changes(undeclared.hint("merge"), "id", ordered=True), ["id"]).strategy == "none"
