# SPDX-License-Identifier: Apache-2.0
"""Objects as files: keys, versions, conditional deletes, and what each error says, on a real server.

`moto_bucket` is for what the real servers lack: see `conftest.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import forebay
from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.options import Secret
from forebay.sources.files import FileSource
from forebay.sources.files.file_index import list_files
from forebay.sources.files.listing import ListOptions
from forebay.state.s3_state_store import S3StateStore
from forebay.stores.s3 import client, object_file
from forebay.stores.s3 import store as listing
from forebay.stores.s3 import store as store_module
from forebay.stores.s3.store import S3Store
from forebay.stores.store import Directory, StorageOptions
from forebay.stores.stored_file import StoredFile, store_for
from forebay.testkit import Fault, FaultProxy

ODD = [
    "a%2Fb", "a+b", "a b", "d//x", "d///x", "😀/é", "k" * 1024, "q=1/ü%20", "tilde~/'quote\"", "x/\\y", "#?&=",
    "ÿ",
]  # fmt: skip
NO_FILE_NAMES = ["d//x", "d///x", "k" * 1024]


def listed(bucket, key: str = "", **options) -> dict[str, int]:
    found = list_files(
        [bucket.url(key)], ListOptions(recursive_file_lookup=True, storage=bucket.options(), **options)
    ).files
    return {file.path.removeprefix(bucket.url() + "/"): file.size for file in found}


def stored(bucket, key: str, **options) -> StoredFile:
    found = store_for(bucket.url(key), bucket.options(**options)).stat(bucket.url(key))
    return StoredFile(found, bucket.options(**options))


def test_every_key_is_listed_found_and_read(bucket):
    read_back(bucket, [key for key in ODD if key not in NO_FILE_NAMES])


def test_keys_that_are_no_names_of_files_are_listed_found_and_read(moto_bucket):
    """On moto: a server on a file system does not have them."""
    read_back(moto_bucket, ODD)


def read_back(bucket, keys: list[str]) -> None:
    bucket.put({key: key for key in keys})
    assert listed(bucket) == {key: len(key.encode()) for key in keys}
    for key in keys:
        with stored(bucket, key).open() as stream:
            assert stream.read() == key.encode()


def test_markers_of_directories_are_no_files_and_a_key_may_also_be_a_directory(moto_bucket):
    """On moto: a server on a file system has no key beside a directory of the same name."""
    moto_bucket.put({"d/": "", "d/e/": "x", "d/a": "1", "d/a/b": "22", "d/a/b/c": "333"})
    assert listed(moto_bucket) == {"d/a": 1, "d/a/b": 2, "d/a/b/c": 3}
    assert listed(moto_bucket, "d/a/b") == {"d/a/b": 2}, "an object is preferred to a directory"
    store = S3Store(moto_bucket.options())
    assert store.stat(moto_bucket.url("d/e")) == Directory(moto_bucket.url("d/e"))
    assert store.stat(moto_bucket.url("d/none")) is None
    assert store.children(moto_bucket.url("d/none"), lambda _: True) is None
    assert store.stat(moto_bucket.url()) == Directory(moto_bucket.url())
    found = store.children(moto_bucket.url("d"), lambda _: True)
    assert found is not None
    assert found.directories == [moto_bucket.url("d/a"), moto_bucket.url("d/e")]
    assert [file.path for file in found.files] == [moto_bucket.url("d/a")]


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_the_scheme_stays_as_it_was_written(bucket, scheme):
    bucket.put({"d/a": "1"})
    root = bucket.url("d").replace("s3", scheme, 1)
    (file,) = list_files([root], ListOptions(storage=bucket.options())).files
    assert file.path == f"{root}/a"
    with StoredFile(file, bucket.options()).open() as stream:
        assert stream.read() == b"1"


def test_globs_and_hidden_names(bucket):
    bucket.put({"d/k=1/a": "1", "d/k=2/b": "2", "d/_x/c": "3", "d/.y/d": "4", "d/k=1/_z": "5", "e/k=1/a": "6"})
    assert listed(bucket, "d") == {"d/k=1/a": 1, "d/k=2/b": 1}
    assert listed(bucket, "*/k=[1]") == {"d/k=1/a": 1, "e/k=1/a": 1}


def test_a_small_tree_costs_one_request_and_a_file_one(bucket):
    bucket.put({f"d/{number}/x": "1" for number in range(20)})
    bucket.requests.clear()
    list_files([bucket.url("d")], ListOptions(recursive_file_lookup=True, storage=bucket.options()))
    assert [request.split()[0] for request in bucket.requests] == ["HEAD", "GET", "GET"], "stat, stat, list"
    file = StoredFile(next(iter(list_files([bucket.url("d/1")], ListOptions(storage=bucket.options())).files)))
    bucket.requests.clear()
    again = StoredFile(file.status, bucket.options())
    with again.open() as stream:
        assert stream.read(10) == b"1"
        assert stream.read() == b""
    again.verify_read()
    assert len(bucket.requests) == 1


@pytest.mark.soak
def test_a_large_tree_is_listed_in_parallel_and_in_order(bucket, monkeypatch):
    monkeypatch.setattr(listing, "PAGE", 7)
    keys = [f"t/y={year}/m={month}/{number}" for year in (1, 2) for month in range(5) for number in range(9)]
    keys += ["t/0first", "t/z/last"]
    bucket.put(dict.fromkeys(keys, "1"))
    bucket.requests.clear()
    found = [
        file.path.removeprefix(bucket.url() + "/") for file in S3Store(bucket.options()).walk(bucket.url("t"), _all)
    ]
    assert found == sorted(keys)
    assert len(bucket.requests) <= len(keys) / 7 + 14
    for key in ("t/y=1/m=1", "t/y=2"):
        found = [file.path for file in S3Store(bucket.options()).walk(bucket.url(key), _all)]
        assert found == sorted(bucket.url(one) for one in keys if one.startswith(f"{key}/"))


def _all(_: str) -> bool:
    return True


@pytest.fixture
def chunks(monkeypatch):
    """Short chunks, so that a read takes several requests."""
    monkeypatch.setattr(object_file, "CHUNK", 1 << 20)
    monkeypatch.setattr(object_file, "SMALL", 1000)


def test_an_object_that_was_overwritten_or_deleted_is_named_and_never_mixed(bucket, chunks):
    bucket.put({"a": b"1" * 3_000_000})
    file = stored(bucket, "a")
    with file.open() as stream:
        assert stream.read(10) == b"1" * 10
        bucket.put({"a": b"2" * 3_000_000})
        stream.seek(2_000_000)
        with pytest.raises(DataError, match=r"/a' has changed since it was listed \(then .*etag.*; now ") as raised:
            stream.read(2_000_000)
        assert "write new files" in str(raised.value.advice)
    with file.open() as stream, pytest.raises(DataError, match="has changed"):
        stream.read(1)
    bucket.client.delete_object(Bucket=bucket.name, Key="a")
    with file.open() as stream, pytest.raises(DataError, match="no longer exists"):
        stream.read(1)
    file.verify_read()


def test_an_object_without_an_etag_is_checked_as_other_files(bucket):
    bucket.put({"a": b"1" * 10})
    file = stored(bucket, "a")
    unpinned = StoredFile(type(file.status)(file.path, 10, file.status.modified_at), bucket.options())
    with unpinned.open() as stream:
        assert stream.read() == b"1" * 10
    unpinned.verify_read()
    bucket.put({"a": b"2" * 11})
    with pytest.raises(DataError, match="has changed"):
        unpinned.verify_read()


def test_a_listing_without_etags_and_with_finer_times_than_head_is_read(bucket, monkeypatch):
    """As of s3s-fs: the listing has milliseconds and no ETag, the answer to HEAD has seconds and an ETag."""
    real = client.S3Client.call

    def call(self, operation, **arguments):
        answer = real(self, operation, **arguments)
        for found in answer.get("Contents", ()) if operation == "list_objects_v2" else ():
            del found["ETag"]
            found["LastModified"] = found["LastModified"].replace(microsecond=54_000)
        return answer

    monkeypatch.setattr(client.S3Client, "call", call)
    bucket.put({"d/a.txt": "one\n", "d/b.txt": "two\n"})
    source = FileSource(
        path=bucket.url("d"), file_format="text", storage={k: Secret(str(v)) for k, v in bucket.options().items()}
    )
    assert sorted(forebay.run(source).to_table()["value"].to_pylist()) == ["one", "two"]
    (file, _) = source.list().files
    bucket.put({"d/a.txt": "a real change\n"})
    with pytest.raises(DataError, match="has changed since it was listed"):
        StoredFile(file, bucket.options()).open().read()


def test_deletes_and_moves_spare_a_newer_object(bucket):
    store = S3Store(bucket.options())
    bucket.put({"in/a": "old", "in/b": "old"})
    first, second = (stored(bucket, key).status for key in ("in/a", "in/b"))
    assert store.delete(first) is True
    assert store.move(second, bucket.url("archive/b c")) is True
    assert listed(bucket) == {"archive/b c": 3}
    assert store.move(second, bucket.url("archive/d")) is False
    bucket.put({"in/a": "newer"})
    assert store.delete(first) is False
    assert listed(bucket) == {"archive/b c": 3, "in/a": 5}


def test_an_object_above_the_limit_of_one_copy_is_moved_in_parts(moto_bucket, monkeypatch):
    """On moto: s3proxy refuses `RequestPayer`."""
    monkeypatch.setattr(store_module, "_COPY_BYTES", 0)
    content = b"1" * (9 << 20)
    moto_bucket.put({"in/b": content})
    file = stored(moto_bucket, "in/b").status
    moto_bucket.requests.clear()
    assert S3Store(moto_bucket.options(requester_pays=True)).move(file, moto_bucket.url("archive/b")) is True
    assert any("uploadId" in request for request in moto_bucket.requests)
    assert listed(moto_bucket) == {"archive/b": len(content)}


def test_a_copy_names_the_version_that_was_read(bucket):
    bucket.put({"in/b": "old"})
    file = stored(bucket, "in/b").status
    named = []

    def changed(environ):  # moto does not know this condition
        named.append(environ.get("HTTP_X_AMZ_COPY_SOURCE_IF_MATCH"))
        return ("412 Precondition Failed", "PreconditionFailed") if environ["REQUEST_METHOD"] == "PUT" else None

    bucket.intercept = changed
    assert S3Store(bucket.options()).move(file, bucket.url("archive/b")) is False
    assert named == [f'"{file.etag}"']
    assert listed(bucket) == {"in/b": 3}


def test_a_store_that_does_not_know_the_condition_deletes_without_it(bucket):
    bucket.put({"a": "1"})
    file = stored(bucket, "a").status

    def refuse(environ):
        condition = environ["REQUEST_METHOD"] == "DELETE" and "HTTP_IF_MATCH" in environ
        return ("501 Not Implemented", "NotImplemented") if condition else None

    bucket.intercept = refuse
    assert S3Store(bucket.options()).delete(file) is True
    assert listed(bucket) == {}


def test_a_missing_bucket_and_a_url_without_one(bucket):
    store = S3Store(bucket.options())
    with pytest.raises(ConfigurationError, match="no bucket 'nowhere'.*'s3://nowhere/d'") as raised:
        store.stat("s3://nowhere/d")
    assert "create the bucket" in str(raised.value.advice)
    with pytest.raises(ConfigurationError, match="names no bucket"):
        store.stat("s3:///d")
    with pytest.raises(ConfigurationError, match="password|credentials"):
        store_for("s3://me:very-secret@b/x")
    with pytest.raises(ConfigurationError, match="the URL contains credentials"):
        store.stat("s3://very-secret@b/x")


REFUSALS = [
    ("403 Forbidden", "AccessDenied", ConfigurationError, "no permission to read", "requester_pays"),
    ("403 Forbidden", "InvalidAccessKeyId", ConfigurationError, "wrong or expired", "storage.key"),
    ("404 Not Found", "XAdminUserNotFound", ConfigurationError, "wrong or expired", "storage.key"),
    ("403 Forbidden", "SignatureDoesNotMatch", ConfigurationError, "wrong or expired", "storage.key"),
    ("400 Bad Request", "ExpiredToken", ConfigurationError, "wrong or expired", "storage.key"),
    ("403 Forbidden", "RequestTimeTooSkewed", ConfigurationError, "clock", "set the clock"),
    ("403 Forbidden", "InvalidObjectState", ConfigurationError, "archived", "restore-object"),
    ("400 Bad Request", "KMS.DisabledException", ConfigurationError, "KMS key", "kms:Decrypt"),
    ("301 Moved", "PermanentRedirect", ConfigurationError, "another region", "storage.region"),
    ("400 Bad Request", "AuthorizationHeaderMalformed", ConfigurationError, "another region", "storage.region"),
    ("400 Bad Request", "OddRequest", ConfigurationError, "refuses", "storage"),
    ("503 Slow Down", "SlowDown", RetriableError, "too busy", "fewer tasks"),
    ("500 Internal", "InternalError", RetriableError, "too busy", "fewer tasks"),
    ("429 Too Many", "TooManyRequests", RetriableError, "too busy", "fewer tasks"),
]


@pytest.mark.soak(
    but=["AccessDenied", "XAdminUserNotFound", "ExpiredToken", "InvalidObjectState", "PermanentRedirect", "SlowDown"]
)
@pytest.mark.parametrize(("status", "code", "kind", "said", "advice"), REFUSALS, ids=[one[1] for one in REFUSALS])
def test_each_refusal_names_the_object_and_the_next_step(bucket, monkeypatch, status, code, kind, said, advice):
    monkeypatch.setattr(client, "ATTEMPTS", 1)
    options = bucket.options(connect_timeout=5 + len(code))  # a client of its own, with one attempt
    bucket.put({"a b": "1"})
    file = StoredFile(stored(bucket, "a b").status, options)
    # Not for HEAD of the bucket, by which botocore looks for the region.
    bucket.intercept = lambda environ: (status, code) if "a%20b" in environ["RAW_URI"] else None
    with file.open() as stream, pytest.raises(kind, match=said) as raised:
        stream.read()
    assert f"{bucket.url('a b')!r}" in str(raised.value)
    assert bucket.endpoint.removeprefix("http://") in str(raised.value)
    assert advice in str(raised.value.advice)
    with pytest.raises(kind, match=said):
        store_for(file.path, options).stat(file.path)


def test_a_token_that_expires_while_reading_is_read_again_from_its_file(moto_bucket, chunks, tmp_path):
    """On moto: the real servers know one key."""
    key = tmp_path / "key"
    key.write_text("first-key\n")
    options = StorageOptions(
        {"key": Secret(f"file:{key}"), "secret": Secret("a-secret"), "endpoint_url": moto_bucket.endpoint}
    )
    moto_bucket.put({"a": b"1" * 3_000_000})
    moto_bucket.intercept = lambda environ: (
        None
        if f"Credential={key.read_text().strip()}/" in environ["HTTP_AUTHORIZATION"]
        else ("400 No", "ExpiredToken")
    )
    found = store_for(moto_bucket.url("a"), options).stat(moto_bucket.url("a"))
    with StoredFile(found, options).open() as stream:
        assert stream.read(5) == b"1" * 5
        key.write_text("second-key\n")
        assert stream.read() == b"1" * 2_999_995
    moto_bucket.intercept = lambda _: ("400 No", "ExpiredToken")
    with StoredFile(found, options).open() as stream, pytest.raises(ConfigurationError, match="wrong or expired"):
        stream.read()


def test_a_role_is_assumed_and_its_credentials_are_used(moto_bucket, monkeypatch):
    """On moto: the real servers have no roles."""
    moto_bucket.put({"a": "1"})
    role = {
        "role_arn": "arn:aws:iam::123456789012:role/reader",
        "external_id": "x9",
        "sts_endpoint_url": moto_bucket.endpoint,
    }
    assumed = stored(moto_bucket, "a", **role)
    moto_bucket.requests.clear()
    seen = []
    moto_bucket.intercept = lambda environ: seen.append(environ["HTTP_AUTHORIZATION"])
    with assumed.open() as stream:
        assert stream.read() == b"1"
    assert "Credential=x/" not in seen[-1]
    moto_bucket.intercept = lambda environ: ("403 No", "AccessDenied") if environ["REQUEST_METHOD"] == "POST" else None
    denied = moto_bucket.options(**role | {"role_arn": "arn:aws:iam::123456789012:role/other"})
    with pytest.raises(
        ConfigurationError, match="could not assume the role 'arn:aws:iam::123456789012:role/other'"
    ) as raised:
        S3Store(denied).stat(moto_bucket.url("a"))
    assert raised.value.option == "storage.role_arn"


def test_anonymous_requests_are_not_signed(moto_bucket):
    """On moto: the real servers demand signatures."""
    moto_bucket.put({"a": "1"})
    seen = []
    moto_bucket.intercept = lambda environ: seen.append("HTTP_AUTHORIZATION" in environ)
    options = StorageOptions({"anon": "true", "endpoint_url": moto_bucket.endpoint, "requester_pays": True})
    S3Store(options).stat(moto_bucket.url("a"))
    assert set(seen) == {False}


def test_a_store_that_is_down_is_retriable(monkeypatch):
    monkeypatch.setattr(client, "ATTEMPTS", 1)
    options = {"key": Secret("a-key-id"), "secret": Secret("a-secret"), "endpoint_url": Secret("http://127.0.0.1:9")}
    with pytest.raises(RetriableError, match=r"did not answer: .*127\.0\.0\.1:9") as raised:
        S3Store(StorageOptions(options)).stat("s3://b/k")
    assert "a-key-id" not in str(raised.value) and "a-secret" not in str(raised.value)


def test_equal_options_share_a_client_and_a_forked_child_has_its_own(bucket):
    one, other = S3Store(bucket.options()), S3Store(bucket.options())
    assert one._client is other._client
    assert S3Store(bucket.options(region="eu-west-1"))._client is not one._client
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"0" if S3Store(bucket.options())._client is one._client else b"1")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
    os.close(read)
    os.close(write)


def test_the_profile_of_a_user(moto_bucket, monkeypatch, tmp_path: Path):
    """On moto: the real servers know one key."""
    file = tmp_path / "credentials"
    file.write_text("[reader]\naws_access_key_id=of-profile\naws_secret_access_key=s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    seen = []
    moto_bucket.intercept = lambda environ: seen.append(environ["HTTP_AUTHORIZATION"])
    S3Store(StorageOptions({"profile": "reader", "endpoint_url": moto_bucket.endpoint})).stat(moto_bucket.url("a"))
    assert "Credential=of-profile/" in seen[0]
    with pytest.raises(ConfigurationError, match="nobody") as raised:
        S3Store(StorageOptions({"profile": "nobody", "endpoint_url": moto_bucket.endpoint}))
    assert raised.value.option == "storage.profile"


@pytest.mark.parametrize("flat", [True, False])
def test_an_answer_to_a_listing_that_ends_after_its_head_is_no_empty_directory(moto_bucket, flat):
    """boto3 takes the empty text for a listing without objects; a path then does not exist, and a state is new."""
    moto_bucket.put({"d/a": "1", "d/b": "22"})
    with FaultProxy(moto_bucket.endpoint) as proxy:
        options = moto_bucket.options(endpoint_url=proxy.url)
        store = S3StateStore(moto_bucket.url("d"), options)
        assert store.names("") == ["a", "b"]

        def found():
            listing_options = ListOptions(recursive_file_lookup=flat, storage=options)
            return [file.name for file in list_files([moto_bucket.url("d")], listing_options).files]

        for number in (1, 2):
            proxy.inject(Fault("cut_after_head", path="*list-type=*", nth=(number,)))
            assert found() == ["a", "b"]
            assert store.names("") == ["a", "b"]
            assert "cut_after_head" in {request.fault for request in proxy.requests}
        proxy.inject(Fault("cut_after_head", path="*list-type=*"))
        for use in (found, lambda: store.names("")):
            with pytest.raises(RetriableError, match="the store did not answer: could not list"):
                use()
