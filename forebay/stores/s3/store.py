# SPDX-License-Identifier: Apache-2.0
"""S3 as a store of files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, Final, NamedTuple, cast

from forebay.errors import ConfigurationError
from forebay.stores.file_status import FileStatus
from forebay.stores.paths import KEY_NAMES, join
from forebay.stores.s3.client import S3Client, client_of
from forebay.stores.s3.errors import Request, is_changed, is_gone, is_unsupported, s3_error
from forebay.stores.s3.listing import Listing
from forebay.stores.s3.object_file import SMALL, ObjectFile
from forebay.stores.s3.object_reader import ObjectReader
from forebay.stores.storage_options import StorageOptions
from forebay.stores.store import Children, Directory

_COPY_BYTES: Final = 5 << 30
"""Maximum bytes of an object that one request can copy."""


class Location(NamedTuple):
    """The parts of an S3 URL: scheme, bucket and key; the key is None if the URL names only a bucket."""

    scheme: str
    bucket: str
    key: str | None

    @property
    def prefix(self) -> str:
        """The prefix that all keys below this location have, if it is a directory."""
        return "" if self.key is None else f"{self.key}/"


def parse_location(url: str) -> Location:
    """Return the parts of an S3 URL. `s3://bucket` is a bucket, `s3://bucket/` a directory in it with an empty name."""
    scheme, _, rest = url.partition("://")
    bucket, slash, key = rest.partition("/")
    return Location(scheme, bucket, key if slash else None)


class S3Store:
    """The objects of S3 and compatible stores as files. Implements `Store`; its only state is the process's client.

    Args:
        options: The user's options; see `S3Settings`.

    Raises:
        ConfigurationError: boto3 is not installed, or an option is wrong.
    """

    keeps_empty_directories = False
    paths_are_keys = True

    def __init__(self, options: StorageOptions) -> None:
        self._client: S3Client = client_of(options)

    def stat(self, path: str) -> FileStatus | Directory | None:
        """Return the object or directory at a path, the object if both exist, or None; see `Store.stat`."""
        at = self._location(path)
        if at.key:
            with self._wrap_errors(path, "read"):
                try:
                    return self._head(path, at)
                except Exception as error:  # noqa: BLE001 - another request raises it
                    # An error answer to HEAD has no body. A listing, if it fails too, says why.
                    if not is_gone(error):
                        return self._stat_by_listing(path, at)
        return Directory(path) if self._is_directory(path, at) else None

    def walk(self, path: str, keep: Callable[[str], bool], after: str = "") -> Sequence[FileStatus]:
        """Return all objects below a directory, except those with a key that ends in a slash; see `Store.walk`."""
        at = self._location(path)
        accepts = _NamesBelow(at.prefix, keep)
        with self._wrap_errors(path, "list"):
            return self._listing(at).tree(at.prefix, accepts, after)

    def children(self, path: str, keep: Callable[[str], bool]) -> Children | None:
        """Return the entries of a directory, or None; see `Store.children`."""
        at = self._location(path, buckets=True)
        found = Children([], [])
        if not at.bucket:
            with self._wrap_errors(path, "list"):
                names = [bucket["Name"] for bucket in self._client.call("list_buckets").get("Buckets", ())]
            return Children([join(path, name) for name in names if keep(name)], [])
        listing, there = self._listing(at), not at.prefix
        with self._wrap_errors(path, "list"):
            for page in listing.pages(at.prefix, delimiter="/"):
                there = there or bool(page.objects or page.prefixes)
                names = [prefix[len(at.prefix) : -1] for prefix in page.prefixes]
                found.directories.extend(join(path, name) for name in names if keep(name))
                keys = ((each, each["Key"][len(at.prefix) :]) for each in page.objects)
                found.files.extend(listing.status(each) for each, name in keys if name and keep(name))
        return found if there else None

    def open(self, path: str, file: FileStatus | None = None, read_to: int | None = None) -> BinaryIO:
        """Open an object for reading; see `Store.open`. If `file` is given, the first read sends the first request."""
        return cast("BinaryIO", self._open(path, file, read_to))

    def open_ahead(self, file: FileStatus) -> BinaryIO | None:
        """Open an object of at most 1 MB, and request its content at once on another thread.

        Return None, without a request, for an object that is larger, empty, or cannot be pinned.
        """
        if not 0 < file.size <= SMALL or not self.pins(file):
            return None
        stream = self._open(file.path, file)
        stream.fetch_ahead()
        return cast("BinaryIO", stream)

    def _open(self, path: str, file: FileStatus | None = None, read_to: int | None = None) -> ObjectFile:
        status = file or self.stat(path)
        if not isinstance(status, FileStatus):
            raise FileNotFoundError(path)
        at = self._location(path)
        request = self._request(path, at, "read")
        reader = ObjectReader(self._client, at.bucket, at.key or "", status, request, lambda: self._now(path))
        return ObjectFile(reader, read_to)

    def pins(self, file: FileStatus) -> bool:
        """Return whether the listed object has an ETag, which each read then demands; see `Store.pins`."""
        return file.etag is not None

    def delete(self, file: FileStatus) -> bool:
        """Delete an object if its ETag is the listed one; see `Store.delete`. Some stores ignore that condition."""
        at = self._location(file.path)
        with self._wrap_errors(file.path, "delete"):
            return self._delete(at, file.etag)

    def move(self, file: FileStatus, target: str) -> bool:
        """Copy an object if it is still the version that was read, then delete it under the same condition."""
        at, there = self._location(file.path), self._location(target)
        with self._wrap_errors(file.path, "move"):
            try:
                self._copy(file, at, there)
            except Exception as error:
                if is_gone(error) or is_changed(error):
                    return False
                raise
            return self._delete(at, file.etag)

    def _copy(self, file: FileStatus, at: Location, there: Location) -> None:
        source = {"Bucket": at.bucket, "Key": at.key}
        condition = {} if file.etag is None else {"CopySourceIfMatch": f'"{file.etag}"'}
        if file.size <= _COPY_BYTES:
            self._client.call("copy_object", Bucket=there.bucket, Key=there.key, CopySource=source, **condition)
        else:  # in parts, which boto3 does in threads of its own
            self._client.boto.copy(source, there.bucket, there.key, ExtraArgs={**condition, **self._client.payer})

    def _delete(self, at: Location, etag: str | None) -> bool:
        condition = {} if etag is None else {"IfMatch": f'"{etag}"'}
        try:
            self._client.call("delete_object", Bucket=at.bucket, Key=at.key, **condition)
        except Exception as error:
            if is_gone(error) or is_changed(error):
                return False
            if not condition or not is_unsupported(error):
                raise
            self._client.call("delete_object", Bucket=at.bucket, Key=at.key)
        return True

    def _head(self, path: str, at: Location) -> FileStatus:
        answer = self._client.call("head_object", Bucket=at.bucket, Key=at.key)
        found = {**answer, "Key": at.key, "Size": answer["ContentLength"]}
        return self._listing(at).status(found)

    def _stat_by_listing(self, path: str, at: Location) -> FileStatus | Directory | None:
        """Return the object or directory at a path, or None, by listing the keys that begin with its key."""
        page = self._listing(at).page(at.key or "", most=1)
        for found in page.objects:
            if found["Key"] == at.key:
                return self._listing(at).status(found)
        return Directory(path) if self._is_directory(path, at) else None

    def _is_directory(self, path: str, at: Location) -> bool:
        """Return whether an object exists below a location. A bucket is a directory even without objects."""
        with self._wrap_errors(path, "list"):
            try:
                return bool(self._listing(at).page(at.prefix, most=1).objects) or not at.prefix
            except Exception as error:
                if is_gone(error):
                    return False
                raise

    def _now(self, path: str) -> FileStatus | None:
        found = self.stat(path)
        return found if isinstance(found, FileStatus) else None

    def _listing(self, at: Location) -> Listing:
        return Listing(self._client, at.bucket, at.scheme)

    def _location(self, path: str, *, buckets: bool = False) -> Location:
        found = parse_location(path)
        if "@" in found.bucket:
            raise ConfigurationError(
                "the URL contains credentials",
                option="path",
                advice="remove them from the URL, and set storage.key and storage.secret",
            )
        if not found.bucket and not buckets:
            raise ConfigurationError(f"the URL {path!r} names no bucket", option="path", advice="give s3://bucket/key")
        return found

    @contextmanager
    def _wrap_errors(self, path: str, doing: str) -> Iterator[None]:
        """Convert errors of boto3 in a `with` block to ForebayErrors."""
        try:
            yield
        except Exception as error:
            found = s3_error(error, self._request(path, parse_location(path), doing))
            if found is error:
                raise
            raise found from error

    def _request(self, path: str, at: Location, doing: str) -> Request:
        client = self._client
        return Request(f"{doing} {path!r}", at.bucket, client.settings, client.server, permissions=_PERMISSIONS[doing])


_PERMISSIONS: Final = {
    "read": "s3:GetObject and s3:ListBucket",
    "list": "s3:ListBucket",
    "delete": "s3:DeleteObject",
    "move": "s3:GetObject, s3:PutObject and s3:DeleteObject",
}


class _NamesBelow:
    """Decides whether `keep` accepts all names of a key below a prefix. Caches the answers for directories of keys."""

    def __init__(self, prefix: str, keep: Callable[[str], bool]) -> None:
        self._start = len(prefix)
        self._keep = keep
        self._known: dict[str, bool] = {"": True}

    def __call__(self, key: str) -> bool:
        directory, _, name = key[self._start :].rpartition("/")
        if directory not in self._known:
            self._known[directory] = all(part in KEY_NAMES or self._keep(part) for part in directory.split("/"))
        return self._known[directory] and self._keep(name)
