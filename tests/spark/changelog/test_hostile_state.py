# SPDX-License-Identifier: Apache-2.0
"""A bucket with keyed state in which an enemy wrote: the query ends, and nothing outside of the state is touched."""

from __future__ import annotations

import json

import pytest
from hostile_names import Untouched

import forebay
from forebay.errors import FatalError
from forebay.spark.changelog.materialize import materialize
from forebay.table.changelog.state.facts import fact_bytes


@pytest.mark.soak
def test_a_manifest_of_an_enemy_writes_and_deletes_nothing_on_the_workers(stream_of_files, s3_server, tmp_path) -> None:
    """The digests of the manifest and of the segment are right: both are the enemy's."""
    outside = Untouched(tmp_path / "outside")
    bucket = s3_server.make_bucket("enemy")
    prefix = f"{tmp_path.name}/state"
    query = stream_of_files(
        lambda df, _: materialize(
            df,
            "id",
            strategy="retract",
            state_location=f"s3://{bucket}/{prefix}",
            state_storage=s3_server.options(),
            shards=1,
        )
    )
    query.write([(1, 10, "a", "insert")])
    assert len(query.run()[0]) == 1
    listed = s3_server.client.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]
    (manifest,) = (found["Key"] for found in listed if "/v000000000000.json" in found["Key"])
    (segment,) = (found["Key"] for found in listed if found["Key"].endswith(".arrow"))
    facts = json.loads(s3_server.client.get_object(Bucket=bucket, Key=manifest)["Body"].read())
    data = s3_server.client.get_object(Bucket=bucket, Key=segment)["Body"].read()
    up = "../" * 12
    del facts["sum"]
    facts["runs"][0][0]["name"] = f"{up}{outside.directory}/new.pth"
    facts["retired"] = [[-1000, f"{up}{outside.directory}/victim.txt"]]
    s3_server.client.put_object(Bucket=bucket, Key=manifest, Body=fact_bytes(facts))
    s3_server.client.put_object(Bucket=bucket, Key=f"{prefix}/new.pth", Body=data)
    query.write([(1, 10, "a", "update_preimage"), (1, 11, "b", "update_postimage")])
    with pytest.raises(Exception, match="is damaged: it describes the segment") as caught:
        query.run()
    assert isinstance(forebay.unwrap(caught.value), FatalError)
    outside.check()
