# SPDX-License-Identifier: Apache-2.0
"""The whole path on S3: a real server, and one that fails."""

from __future__ import annotations

import pytest

from forebay.errors import ConfigurationError, RetriableError
from forebay.state.s3_state_store import S3StateStore
from forebay.state.state_store import RetryingStateStore
from forebay.table.index.gc import collect
from forebay.table.index.verify import verify
from forebay.table.index.why import explain


@pytest.fixture
def bucket_objects(objects_at, s3_server):
    bucket = s3_server.make_bucket("objects")
    return objects_at(location=f"s3://{bucket}/funnel", storage=s3_server.options())


def test_commits_answers_and_operations_on_s3(bucket_objects):
    objects = bucket_objects
    storage = objects.index.storage
    objects.commit("a", [{"id": number, "name": f"n{number}", "note": "late"} for number in range(20)], "snapshot")
    node = objects.node(storage=storage)
    objects.commit("b", [{"id": 3, "city": "c"}])
    objects.commit("a", [{"id": 4}], "delete")
    node.refresh()
    assert (node.get(3)["city"], node.get(4), node.search("late").count()) == ("c", None, 19)
    assert verify(objects.index).is_equal and verify(objects.index, node.view()).is_equal
    assert explain(objects.index, 3).rows["b"] == {"id": 3, "city": "c"}
    for number in range(4):
        objects.commit("b", [{"id": 3, "city": str(number)}])
    found = collect(objects.index, keep=1, versions=1)
    assert found.facts and found.files
    assert verify(objects.index).is_equal
    node.refresh()
    assert node.get(3)["city"] == "3"


def test_edits_on_s3(bucket_objects):
    objects = bucket_objects
    objects.commit("a", [{"id": number, "name": f"n{number}"} for number in range(5)], "snapshot")
    node, other = (objects.node(storage=objects.index.storage) for _ in range(2))
    assert [node.edit(3, name="x"), node.delete(4), other.edit(3, city="c")] == [1, 2, 3]
    assert other.get(3) == node.get(3, at_least=3) == {"id": 3, "name": "x", "note": None, "city": "c"}
    objects.flush()
    assert [name for name in collect(objects.index, keep=1, versions=1).facts if "/edits/" in name]
    for each in (node, other):
        each.refresh()
        assert (each.get(3)["city"], each.count(), each.edit(0, city="d") > 3) == ("c", 4, True)
        assert verify(objects.index, each.view()).is_equal


def test_a_store_that_fails_for_a_moment_is_asked_again(bucket_objects, monkeypatch):
    """503 and slow answers: S3StateStore raises RetriableError for them."""
    objects, failures, waited = bucket_objects, [3], []
    put = S3StateStore.put_if_absent

    def failing(store, name, data):
        if "/log/" in name and failures[0]:
            failures[0] -= 1
            if failures[0] == 0:  # the request was done, and its answer was lost
                put(store, name, data)
            raise RetriableError("503 Slow Down")
        return put(store, name, data)

    monkeypatch.setattr(S3StateStore, "put_if_absent", failing)
    init = RetryingStateStore.__init__
    monkeypatch.setattr(
        RetryingStateStore, "__init__", lambda store, inner, **more: init(store, inner, sleep=waited.append, **more)
    )
    objects.index = type(objects.index)(objects.location, "O", objects.index.storage)
    objects.begin()
    failures[0] = 3
    assert objects.commit("a", [{"id": 1, "name": "x"}]).number == 1
    assert objects.index.log.head().number == 1
    assert len(waited) >= 3
    assert objects.node(storage=objects.index.storage).get(1)["name"] == "x"


def test_a_location_without_rights_is_named(objects_at, s3_server):
    bucket = s3_server.make_bucket("rights")
    wrong = {**s3_server.options(), "secret": "wrong"}
    with pytest.raises(ConfigurationError, match="rights"):
        objects_at(location=f"s3://{bucket}/funnel", storage=wrong).commit("a", [{"id": 1}])
