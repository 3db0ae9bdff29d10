# SPDX-License-Identifier: Apache-2.0
"""Names in a state, a manifest or an offset that an enemy wrote: nothing outside is read, written or deleted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hostile_names import Untouched, hostile_names

from forebay.errors import ConfigurationError, FatalError, ForebayError
from forebay.framework.microbatch.end_negotiation import ClaimChain, claims_of
from forebay.framework.microbatch.offset import Offset, dump_offset
from forebay.framework.microbatch.spilling_codec import SpillingOffsetCodec, encode, is_link
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.retry import RetryPolicy
from forebay.state import s3_state_store
from forebay.state.local_state_store import LocalStateStore
from forebay.state.s3_state_store import S3StateStore
from forebay.state.state_store import StateStore, is_safe_name
from forebay.stores.store import StorageOptions
from forebay.table.changelog.state import segments
from forebay.table.changelog.state.facts import SegmentInfo, fact_bytes
from forebay.table.changelog.state.manifest import Manifest, OperatorInfo
from forebay.table.changelog.state.segments import FIXED, StoredSegments
from forebay.table.changelog.state.shard import OperatorState

COUNT = [300, pytest.param(20_000, marks=pytest.mark.soak)]
ENTRIES = pa.record_batch([[1, 2], [1, 2], [0, 0], [1, 1]], schema=FIXED)


@pytest.fixture
def outside(tmp_path: Path) -> Untouched:
    """A directory beside the state."""
    return Untouched(tmp_path / "outside")


@pytest.fixture
def local(tmp_path: Path) -> LocalStateStore:
    store = LocalStateStore(str(tmp_path / "state"))
    store.put_if_absent("q/segments/1", b"x")
    return store


class Memory:
    """A store that takes every name, as a bucket does."""

    location = "s3://bucket/state"

    def __init__(self, location: str = "s3://bucket/state") -> None:
        self.location = location
        self.facts: dict[str, bytes] = {}
        self.everywhere: bytes | None = None

    def get(self, name: str) -> bytes | None:
        return self.facts.get(name, self.everywhere)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self.facts.setdefault(name, data) is data

    def local_path(self, name: str) -> None:
        return None

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.facts if name.startswith(prefix) and "/" not in name[len(prefix) :])

    def directories(self, prefix: str) -> list[str]:
        found = {name[len(prefix) :].partition("/")[0] for name in self.facts if name.startswith(prefix)}
        return sorted(f"{prefix}{name}/" for name in found)

    def delete(self, names: Any) -> None:
        for name in names:
            self.facts.pop(name, None)


def calls_of(store: StateStore) -> dict[str, Callable[[str], object]]:
    return {
        "get": store.get,
        "put_if_absent": lambda name: store.put_if_absent(name, b"PWNED"),
        "delete": lambda name: store.delete([name]),
        "names": lambda name: store.names(f"{name}/"),
        "directories": lambda name: store.directories(f"{name}/"),
    }


@pytest.mark.parametrize("count", COUNT)
def test_no_name_leaves_a_local_state(tmp_path: Path, local: LocalStateStore, outside: Untouched, count: int) -> None:
    for name in hostile_names(1, count, outside.directory):
        for call in calls_of(local).values():
            with suppress(ForebayError):
                call(name)
                assert is_safe_name(name)
    outside.check()
    assert sorted(os.listdir(tmp_path)) == ["outside", "state"]


@pytest.mark.parametrize("call", ["get", "put_if_absent", "delete", "names", "directories"])
@pytest.mark.parametrize("name", ["../outside/a", "/outside/a", "q/../../outside/a", "", ".", "q//a", "a\x00b"])
def test_a_name_that_leaves_the_state_is_refused(local: LocalStateStore, name: str, call: str) -> None:
    if call in ("names", "directories") and name == "":
        return  # the top of the state
    with pytest.raises(ConfigurationError, match="outside of it") as caught:
        calls_of(local)[call](name)
    assert "from one backup" in str(caught.value.advice)


@pytest.mark.parametrize("call", ["get", "put_if_absent", "delete", "names", "directories"])
def test_a_linked_directory_does_not_lead_out_of_a_local_state(
    tmp_path: Path, local: LocalStateStore, outside: Untouched, call: str
) -> None:
    (tmp_path / "state" / "linked").symlink_to(outside.directory)
    assert local.directories("") == ["q/"]
    with pytest.raises(ConfigurationError, match="leads out of the state"):
        calls_of(local)[call]("linked/a" if call in ("get", "put_if_absent", "delete") else "linked")
    outside.check()


def test_a_state_whose_whole_location_is_a_link_is_used(tmp_path: Path, local: LocalStateStore) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "state")
    assert LocalStateStore(str(tmp_path / "link")).get("q/segments/1") == b"x"


@pytest.mark.parametrize("count", COUNT)
def test_no_name_leaves_the_prefix_of_a_bucket(monkeypatch: pytest.MonkeyPatch, outside: Untouched, count: int) -> None:
    store = S3StateStore(
        "s3://b/chk", StorageOptions({"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"})
    )
    keys: list[str] = []

    def seen(_operation: str, **arguments: Any) -> dict[str, Any]:
        keys.append(arguments["Key"] if "Key" in arguments else arguments.get("Prefix", ""))
        keys.extend(each["Key"] for each in arguments.get("Delete", {}).get("Objects", ()))
        raise ConfigurationError("seen")

    monkeypatch.setattr(s3_state_store, "_probed", set())
    monkeypatch.setattr(store._client, "call", seen)
    monkeypatch.setattr(s3_state_store, "refuse_racy_store", lambda *_: None)
    for name in hostile_names(2, count, outside.directory):
        for call in calls_of(store).values():
            with pytest.raises(ConfigurationError):
                call(name)
    assert keys
    for key in filter(None, keys):
        assert key.startswith("chk/") and is_safe_name(key.removeprefix("chk/").removesuffix("/"))


# -- segments of a keyed state


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for copies of segments."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "spark"))
    monkeypatch.setattr(segments, "_verified", type(segments._verified)())
    return tmp_path / "spark" / f"forebay-state-{os.geteuid()}"


@pytest.mark.parametrize("count", COUNT)
def test_no_segment_of_a_bucket_is_copied_or_removed_outside_of_the_cache(
    cached: Path, outside: Untouched, count: int
) -> None:
    """The manifest and the bytes are the enemy's, so the digest is right."""
    store = Memory()
    files = StoredSegments(store)
    written = files.write("op/00000/", ENTRIES)
    store.everywhere = store.facts.pop(written.name)
    for name in hostile_names(3, count, outside.directory):
        info = SegmentInfo(**{**written.__dict__, "name": name})
        try:
            files.open(info)
            files.forget([name])
        except (ForebayError, UnicodeEncodeError):
            assert "\ud800" in name
    outside.check()
    assert [path for path in cached.rglob("*") if path.is_file()] == []
    assert os.listdir(cached.parent) == [cached.name]


def test_bytes_that_do_not_match_their_manifest_are_never_written(cached: Path) -> None:
    store = Memory()
    files = StoredSegments(store)
    info = files.write("op/00000/", ENTRIES)
    store.facts[info.name] = b"#!/bin/sh" + store.facts[info.name][9:]
    with pytest.raises(FatalError, match="its digest differs"):
        files.open(info)
    assert [path for path in cached.rglob("*") if path.is_file()] == []


def manifest_naming(segment: object, retired: object) -> bytes:
    schema = Manifest(1, (), FIXED).to_bytes()
    facts = json.loads(schema)
    del facts["sum"]
    described = {"name": segment, "rows": 1, "size": 1, "digest": "d", "first": 0, "last": 0}
    return fact_bytes(facts | {"runs": [[described]], "retired": [[1, retired]]})


@pytest.mark.parametrize("count", COUNT)
def test_a_manifest_that_names_files_outside_is_damaged(outside: Untouched, count: int) -> None:
    assert Manifest.from_bytes(manifest_naming("op/0/a", "op/0/b"), "v1").entries == 1
    for number, name in enumerate(hostile_names(4, count, outside.directory)):
        both = (name, "op/0/a") if number % 2 else ("op/0/a", name)
        if is_safe_name(name):
            Manifest.from_bytes(manifest_naming(*both), "v1")
            continue
        with pytest.raises(FatalError, match="the file v1 of the state is damaged") as caught:
            Manifest.from_bytes(manifest_naming(*both), "v1")
        assert "from one backup" in str(caught.value.advice)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"digest": 5}, {"rows": "1"}, {"size": None}, {"name": ["a"]}, {"first": []}),
        *({"rows": -1}, {"size": True}, {"last": 1 << 70}, {"oldest": []}, {"tombstones": "x"}, {"new": 1}),
    ],
)
def test_a_manifest_with_values_of_other_types_is_damaged(wrong: dict[str, object]) -> None:
    facts = json.loads(manifest_naming("op/0/a", "op/0/b"))
    del facts["sum"]
    facts["runs"][0][0] |= wrong
    with pytest.raises(FatalError, match="is damaged"):
        Manifest.from_bytes(fact_bytes(facts), "v1")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"counts": -1}, {"counts": {"a": "x"}}, {"version": "x"}, {"retired": [[1]]}, {"runs": [[5]]}),
        *({"digest": None}, {"clock": []}, {"schema": ""}, {"schema": "aaaa"}, {"schema": 7}),
    ],
)
def test_a_manifest_with_fields_of_other_types_is_damaged(wrong: dict[str, object]) -> None:
    facts = json.loads(manifest_naming("op/0/a", "op/0/b"))
    del facts["sum"]
    with pytest.raises(FatalError, match="the file v1 of the state is damaged"):
        Manifest.from_bytes(fact_bytes(facts | wrong), "v1")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"directory": -1}, {"directory": None}, {"first": "x"}, {"first": None}, {"generation": "x"}, {"query": 5}),
        *({"generation": None}, {"shards": "x"}, {"shards": 0}, {"shards": 20_000_000}, {"keys": "x"}, {"keys": [[1]]}),
    ],
)
def test_an_operator_with_values_of_other_types_is_damaged(wrong: dict[str, object]) -> None:
    facts = json.loads(OperatorInfo("q", "materialize", 2, (("k", "bigint"),), 0).to_bytes())
    del facts["sum"]
    with pytest.raises(FatalError, match=r"the file operator\.json of the state is damaged"):
        OperatorInfo.from_bytes(fact_bytes(facts | wrong), "operator.json")


@pytest.mark.parametrize("directory", ["../", "g00001/../../", "/tmp/", "a//b/", "..", "a\x00/"])
def test_an_operator_whose_shards_are_elsewhere_is_damaged(directory: str) -> None:
    info = OperatorInfo("q", "materialize", 2, (("k", "bigint"),), 0, directory=directory)
    with pytest.raises(FatalError, match="names the directory"):
        OperatorInfo.from_bytes(info.to_bytes(), "operator.json")


def test_a_reshard_does_not_remove_what_a_link_leads_to(tmp_path: Path, outside: Untouched) -> None:
    from forebay.table.changelog.state.reshard import _remove_others

    store = LocalStateStore(str(tmp_path / "state"))
    store.put_if_absent("op/00000/v000000000000.json", b"x")
    store.put_if_absent("op/garbage/x", b"x")
    (tmp_path / "state" / "op" / "g00001-dead").symlink_to(outside.directory)
    _remove_others(store, "op/", OperatorInfo("q", "o", 1, (), 0, 2, "g00002-new/"))
    outside.check()
    assert store.directories("op/") == []


def test_files_of_others_among_the_versions_of_a_shard_are_left_out(tmp_path: Path) -> None:
    state = OperatorState(str(tmp_path), "op", shards=1)
    store = state.store()
    for name in ("v000000000003.json", "notes.json", "v1.json", "v00000000000x.json"):
        store.put_if_absent(f"op/00000/{name}", b"")
    assert state.shard(0).versions() == [3]


# -- offsets


class Lines(Source):
    """A source for the codec."""

    name = "lines"

    def schema(self) -> Any:
        raise NotImplementedError

    def create_enumerator(self, context: Any) -> Any:
        raise NotImplementedError

    def create_split_reader(self, context: Any) -> Any:
        raise NotImplementedError


def calls() -> ConnectorCalls:
    return ConnectorCalls("lines", ThreadRuntime(), retry=RetryPolicy(retries=0), timeout=60)


@pytest.mark.parametrize("count", COUNT)
def test_no_offset_reads_or_writes_outside_of_the_state(
    tmp_path: Path, local: LocalStateStore, outside: Untouched, count: int
) -> None:
    link, data = encode(1, None, {}, (), ())
    good = dump_offset(Offset("lines", 1, "q", [])) | {"state": {"segment": link.name, "digest": link.digest}}
    local.put_if_absent(f"q/segments/{link.name}", data)
    assert SpillingOffsetCodec(Lines(), local, calls()).read_done(good) is not None
    for number, name in enumerate(hostile_names(5, count, outside.directory)):
        if number % 2:
            offset = good | {"id": name}
            if is_safe_name(name) and "/" not in name:
                continue
        else:
            offset = good | {"state": {"segment": name, "digest": hashlib.sha256(b"").hexdigest()}}
        codec = SpillingOffsetCodec(Lines(), local, calls())
        for read in (codec.read_done, codec.read):
            try:
                read(offset)
            except ConfigurationError as error:
                assert error.advice  # noqa: PT017 - an empty id of a query has no segments to miss
            else:  # `read` does not look at a segment without fields of the offset
                assert offset["id"] == "" or (is_link(name, link.digest) and read == codec.read), offset
    outside.check()
    assert sorted(os.listdir(tmp_path / "state")) == ["q"]


def test_an_offset_whose_id_is_a_path_is_damaged(local: LocalStateStore) -> None:
    offset = dump_offset(Offset("lines", 1, "../../victim", []))
    with pytest.raises(
        ConfigurationError, match=r"the offset in the checkpoint is damaged: its id is '\.\./\.\./victim'"
    ):
        SpillingOffsetCodec(Lines(), local, calls()).read(offset)


@pytest.mark.parametrize("count", [300])
def test_the_claims_of_any_split_are_below_those_of_the_micro_batch(outside: Untouched, count: int) -> None:
    stems = set()
    for name in {*hostile_names(6, count, outside.directory)}:
        if name:
            chain = ClaimChain(Memory(), calls(), "q", 7, Split(name))
            assert is_safe_name(chain._name(3)) and chain._name(3).rpartition("/")[0] + "/" == claims_of("q", 7)
            stems.add(chain._name(3))
    assert len(stems) == len({*hostile_names(6, count, outside.directory)} - {""})
