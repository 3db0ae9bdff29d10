# SPDX-License-Identifier: Apache-2.0
"""The stores of fsspec. S3 comes here only inside a chained URL. Only this module imports fsspec, if a URL needs it."""

from __future__ import annotations

import datetime as dt
import ftplib
import http.client
import importlib
import io
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.stores.file_status import GENERATION, FileStatus
from forebay.stores.paths import KEY_NAMES, join, last_name
from forebay.stores.store import Children, Directory, StorageOptions

if TYPE_CHECKING:
    from typing_extensions import Buffer


# -- Creates a `FileStatus` from the `info` dictionary of fsspec, whose keys differ from store to store.


_TIME_KEYS = (
    "LastModified", "last_modified", "Last-Modified", "mtime", "modified", "updated", "timeModified", "modify",
    "created",
)  # fmt: skip
_ETAG_KEYS = ("ETag", "etag", "VersionId", "version_id", "md5Hash")
_CREATED_KEYS = ("timeCreated", "ctime")  # the content of an object with a generation never changes
_MILLISECONDS = "modificationTime"  # webhdfs
_MAX_SECONDS = 100_000_000_000  # a larger number is milliseconds


def status(path: str, info: Mapping[str, Any]) -> FileStatus:
    """Return the status of a file from its `info` or `ls` entry.

    Raises:
        ConfigurationError: The store does not report the size of the file.
    """
    size = info.get("size")
    if size is None:
        raise ConfigurationError(
            f"the store does not report the size of {path!r}",
            option="path",
            advice="copy the file to a store that reports sizes, or to a local directory",
        )
    if generation := info.get("generation"):
        # On Google Cloud Storage a new storage class changes the ETag and the time of change.
        return FileStatus(path, int(size), _time(info, _CREATED_KEYS + _TIME_KEYS), f"{GENERATION}{generation}")
    etag = next((str(info[key]).strip('"') for key in _ETAG_KEYS if info.get(key)), None)
    return FileStatus(path, int(size), _time(info, _TIME_KEYS), etag)


def _time(info: Mapping[str, Any], keys: Sequence[str]) -> int:
    moment = next((info[key] for key in keys if info.get(key) is not None), None)
    if moment is None and isinstance(milliseconds := info.get(_MILLISECONDS), int):
        return milliseconds * 1_000_000
    return nanoseconds(moment)


def nanoseconds(moment: object) -> int:
    """Return a time as nanoseconds since 1970 UTC, from any form that stores use; 0 if the form is unknown."""
    if isinstance(moment, dt.datetime):
        aware = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
        return (aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1) * 1000
    if isinstance(moment, int | float):
        seconds = moment / 1000 if moment > _MAX_SECONDS else moment
        return round(seconds * 1_000_000) * 1000
    if isinstance(moment, str):
        for read in (dt.datetime.fromisoformat, _compact):
            try:
                return nanoseconds(read(moment))
            except ValueError:
                continue
    return 0


def _compact(text: str) -> dt.datetime:
    return dt.datetime.strptime(text[:14] + "+0000", "%Y%m%d%H%M%S%z")


# Packages for schemes where fsspec's message does not name one.
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "s3n": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs",
    "az": "adlfs", "adl": "adlfs", "wasb": "adlfs", "wasbs": "adlfs", "sftp": "paramiko", "ssh": "paramiko",
    "http": "aiohttp requests", "https": "aiohttp requests", "smb": "smbprotocol", "hf": "huggingface_hub",
    "oss": "ossfs", "oci": "ocifs", "webhdfs": "requests", "webdav": "webdav4", "git": "pygit2", "github": "requests",
    "dbfs": "requests", "lakefs": "lakefs-spec", "root": "fsspec-xrootd",
}  # fmt: skip

# Schemes of stores whose paths are keys.
_KEYED = frozenset({"s3", "s3a", "gs", "gcs"})
# Content types of web pages; some servers send them for data too, so the first bytes decide.
_PAGES = frozenset({"text/html", "application/xhtml+xml"})
_PAGE_SUFFIXES = (".html", ".htm", ".xhtml")
_PAGE_HEAD = 1024
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|(?s:.*)<html|html)[\s>]", re.IGNORECASE)


class RemoteStore:
    """A `Store` that uses fsspec. Each listing creates a new one, with empty caches.

    Args:
        url: A URL of the store, which determines fsspec's class and the host.
        options: Keyword arguments for that class.

    Raises:
        ConfigurationError: The scheme is unknown, its package is not installed, or it does not take the options.
        RetriableError: The store did not answer.
    """

    def __init__(self, url: str, options: StorageOptions) -> None:
        options = options.without("fs.s3a.")  # settings of the Spark session, for S3
        self._options = options
        self._fs = _connect(url, options)
        try:
            self._fs.invalidate_cache()
        except Exception as error:
            raise self._store_error(error, url) from error

    @property
    def keeps_empty_directories(self) -> bool:
        """Whether a directory may be empty; see `Store.keeps_empty_directories`."""
        return not (_lists_flat(self._fs) or getattr(self._fs, "protocol", None) == "memory")

    @property
    def paths_are_keys(self) -> bool:
        """Whether paths are keys of an object store; see `Store.paths_are_keys`."""
        protocol = getattr(self._fs, "protocol", ())
        return not _KEYED.isdisjoint((protocol,) if isinstance(protocol, str) else protocol)

    def stat(self, path: str) -> FileStatus | Directory | None:
        """Return the file or directory at a path, or None; see `Store.stat`."""
        info: Mapping[str, Any] | None = None
        with suppress(FileNotFoundError), self._wrap_errors(path):
            info = self._fs.info(self._inner(path))
        if info is None:
            return None
        if info.get("type") == "directory":
            return Directory(path)
        if info.get("mimetype") in _PAGES:
            self._check_no_page(path)
        return status(path, info)

    def walk(self, path: str, keep: Callable[[str], bool], after: str = "") -> Sequence[FileStatus] | None:
        """Return all files below a directory; None for stores that list one directory at a time; see `Store.walk`."""
        if not _lists_flat(self._fs):
            return None
        root = self._inner(path)
        infos: dict[str, Any] = {}
        with suppress(FileNotFoundError), self._wrap_errors(path):
            infos = self._fs.find(root, detail=True)
        files: list[FileStatus] = []
        for name, info in infos.items():
            if info.get("type") != "directory" and name.startswith(root) and not name.endswith("/"):
                *above, last = name[len(root) :].removeprefix("/").split("/")
                if keep(last) and all(part in KEY_NAMES or keep(part) for part in above):
                    files.append(status(reduce(join, [*above, last], path), info))
        return files

    def children(self, path: str, keep: Callable[[str], bool]) -> Children | None:
        """Return the entries of a directory, or None; see `Store.children`."""
        entries = self._listed(path)
        if entries is None:
            return None
        directories: list[str] = []
        files: list[FileStatus] = []
        for name, info in entries.items():
            if keep(name):
                child = join(path, name)
                if info is None:
                    directories.append(child)
                else:
                    files.append(status(child, info))
        return Children(directories, files)

    def open(self, path: str, file: FileStatus | None = None, read_to: int | None = None) -> BinaryIO:
        """Open a file for reading; see `Store.open`."""
        inner = self._inner(path)
        with self._wrap_errors(path):
            if getattr(self._fs, "protocol", None) == "memory":  # its readers share one object and position
                return io.BytesIO(self._fs.cat_file(inner))
            stream = self._fs.open(inner, "rb")
        return cast("BinaryIO", _WrappedStream(stream, lambda error: self._store_error(error, path)))

    def pins(self, file: FileStatus) -> bool:
        """Return False: reads by fsspec do not check the version of a file; see `Store.pins`."""
        return False

    def delete(self, file: FileStatus) -> bool:
        """Delete a file, also a newer one that appears after the caller's check; see `Store.delete`."""
        with suppress(FileNotFoundError), self._wrap_errors(file.path, "delete"):
            self._fs.rm_file(self._inner(file.path))
            return True
        return False

    def move(self, file: FileStatus, target: str) -> bool:
        """Rename a file, or copy it within the store and delete the original; see `Store.move` and `delete`."""
        with suppress(FileNotFoundError), self._wrap_errors(file.path, "move"):
            inner, there = self._inner(file.path), self._inner(target)
            self._fs.makedirs(posixpath.dirname(there), exist_ok=True)
            self._fs.mv(inner, there)
            return True
        return False

    def _listed(self, path: str) -> dict[str, Mapping[str, Any] | None] | None:
        inner = self._inner(path)
        with suppress(FileNotFoundError), self._wrap_errors(path):
            own = str(inner).rstrip("/")
            infos = {
                posixpath.basename(info["name"].rstrip("/")): None if info.get("type") == "directory" else info
                for info in self._fs.ls(inner, detail=True)
                if info["name"].rstrip("/") != own  # the marker object of the directory itself
            }
            if not self.paths_are_keys and (wrong := KEY_NAMES & infos.keys()):
                raise ConfigurationError(
                    f"the store lists the name {min(wrong)!r} in {path!r}, which leads out of the directory",
                    option="path",
                    advice="name the files one by one, or copy them to another store",
                )
            return infos
        return None

    def _check_no_page(self, path: str) -> None:
        """Raise an error if a web server sends an index, login or error page for `path` instead of data."""
        if last_name(path).lower().endswith(_PAGE_SUFFIXES):
            return
        try:
            head = self._fs.cat_file(self._inner(path), 0, _PAGE_HEAD)
        except Exception as error:
            raise self._store_error(error, path) from error
        if _PAGE.match(head[:_PAGE_HEAD]):
            raise ConfigurationError(
                f"the server answers {path!r} with a web page (text/html)",
                option="path",
                advice="name the data files, because a web server's index is not read as a directory; if the page asks "
                "for a login, give credentials as storage options",
            )

    def _inner(self, path: str) -> str:
        first = path.split("::")
        own = first[1] if "://" not in first[0] else first[0]
        return str(self._fs._strip_protocol(own))  # noqa: SLF001 (fsspec has no public name for it)

    @contextmanager
    def _wrap_errors(self, path: str, doing: str = "read") -> Iterator[None]:
        """Convert errors of the store in a `with` block to FileNotFoundError or a ForebayError."""
        try:
            yield
        except Exception as error:
            if says_gone(error):
                raise FileNotFoundError(path) from error
            raise self._store_error(error, path, doing) from error

    def _store_error(self, error: Exception, path: str, doing: str = "read") -> ForebayError:
        """Return the ForebayError, without secrets, for an error of a store's library.

        `doing` is the failed request as a verb, such as `read`.
        """
        # fsspec raises FileNotFoundError for any failed request to a web server; the server's answer is its cause.
        shown = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
        return remote_error(error, path, self._options.redact(f"{type(shown).__name__}: {shown}"), doing)


class _WrappedStream(io.RawIOBase):
    """The stream of a file in a store. It converts errors to ForebayErrors, whose class says whether to retry."""

    def __init__(self, stream: BinaryIO, store_error: Callable[[Exception], ForebayError]) -> None:
        super().__init__()
        self._stream = stream
        self._store_error = store_error

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._stream.seekable()

    def tell(self) -> int:
        return self._stream.tell()

    def read(self, size: int | None = -1) -> bytes:
        try:
            return self._stream.read(-1 if size is None else size)
        except Exception as error:
            raise self._store_error(error) from error

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Buffer) -> int:
        with memoryview(buffer).cast("B") as view:
            data = self.read(len(view))
            view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return self._stream.seek(offset, whence)
        except Exception as error:
            raise self._store_error(error) from error

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def _connect(url: str, options: StorageOptions) -> Any:  # noqa: ANN401 (fsspec has no types)
    scheme = url.split(":", 1)[0]
    try:
        core = importlib.import_module("fsspec.core")
    except ImportError:
        raise _not_installed(scheme, "fsspec is not installed") from None
    try:
        try:
            return core.url_to_fs(url, use_listings_cache=False, **options)[0]
        except TypeError:  # a few classes refuse unknown arguments; `invalidate_cache` empties their listings
            return core.url_to_fs(url, **options)[0]
    except ImportError as error:
        raise _not_installed(scheme, options.redact(str(error))) from error
    except (ConnectionError, TimeoutError) as error:
        raise RetriableError(
            f"the store of {url!r} could not be reached ({options.redact(str(error))})",
            advice="check that the store is running and that the network reaches it",
        ) from error
    except Exception as error:
        if "Protocol not known" in str(error):
            raise _not_installed(scheme, f"no store is known for the scheme {scheme!r}") from error
        raise ConfigurationError(
            f"the store of {url!r} could not be opened ({type(error).__name__}: {options.redact(str(error))})",
            option="path",
            advice="check the URL and the storage options",
        ) from error


def _not_installed(scheme: str, reason: str) -> ConfigurationError:
    package = _PACKAGES.get(scheme.lower())
    advice = f'pip install "forebay[files]"{" " + package if package else ""}'
    if package is None:
        advice += ", and the fsspec package for this scheme, or correct the scheme"
    return ConfigurationError(
        f"URLs that begin with {scheme}:// cannot be read: {reason}", option="path", advice=advice
    )


def _lists_flat(fs: object) -> bool:
    """Return whether `find` of an fsspec store makes one flat listing, as object stores do.

    In other stores, `find` walks the directories and ignores errors.
    """
    generic = getattr(importlib.import_module("fsspec.asyn").AsyncFileSystem, "_find", None)
    own = getattr(type(fs), "_find", None)
    return own is not None and own is not generic


# -- Classifies errors of fsspec stores: the file does not exist, access is denied, or the store failed temporarily.
#
# fsspec raises `FileNotFoundError` also for other errors: with HTTP for every answer except success, with FTP for every
# refusal. The actual answer of the server is in the chain of the error's causes.


_GONE = frozenset({404, 410})
_DENIED = frozenset({401, 403, 407})
# Answers below 500 that are temporary. After 412 and 416 the next try finds that the file has changed.
_TEMPORARY = frozenset({408, 409, 412, 416, 421, 423, 425, 429})
_FTP_NOT_THERE = "550"
# Libraries whose errors are those of a connection or an answer, though not all are an OSError.
_NETWORK = frozenset({"aiohttp", "httpcore", "httpx", "requests", "urllib3"})


def says_gone(error: BaseException) -> bool:
    """Return whether an error means that a file or directory does not exist.

    An HTTP status means this only if it is 404 or 410. Without a status, a FileNotFoundError or NotADirectoryError
    means this, unless a network error caused it.
    """
    meanings = [_meaning(link) for link in _chain(error)]
    if decided := [meaning for meaning in meanings if meaning is not None]:
        return decided[0]
    return isinstance(error, FileNotFoundError | NotADirectoryError)


def remote_error(error: Exception, path: str, said: str, doing: str = "read") -> ForebayError:
    """Return the ForebayError for an error of a store's library for which `says_gone` is false.

    `said` is the library's error text without secrets, `doing` the failed request: `read`, `delete` or `move`.
    """
    if isinstance(error, ForebayError):
        return error
    status = next((link_status for link in _chain(error) if (link_status := _status(link)) is not None), None)
    if isinstance(error, PermissionError) or status in _DENIED or "Credentials" in type(error).__name__:
        return ConfigurationError(
            f"no permission to {doing} {path!r} ({said})",
            option="path",
            advice=f"set credentials with the permission to list and {doing} it, as storage options or as the store's "
            "own tools read them; replace expired credentials",
        )
    if _refused(error, status):
        return ConfigurationError(
            f"the store refuses to {doing} {path!r} ({said})", option="path", advice="check the URL and storage options"
        )
    return RetriableError(
        f"could not {doing} {path!r} in its store ({said})",
        advice="check that the server is up and the network reaches it",
    )


def _refused(error: Exception, status: int | None) -> bool:
    """Return whether the store would refuse the same request again, so that a retry is useless.

    `status` is the HTTP status of the error; None if it has none.
    """
    if isinstance(error, TimeoutError | ConnectionError):
        return False
    if status is None:
        return isinstance(error, ValueError | TypeError | NotImplementedError | ImportError)
    return status < 500 and status not in _TEMPORARY | _GONE


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        # The context may be an unrelated error of the caller.
        link = link.__cause__


def _meaning(link: BaseException) -> bool | None:
    """Return whether one error of a chain of causes means that the file does not exist; None if it does not say."""
    if (status := _status(link)) is not None:
        return status in _GONE
    if isinstance(link, ftplib.Error):
        return str(link).startswith(_FTP_NOT_THERE)
    network = isinstance(link, ConnectionError | TimeoutError | EOFError | http.client.HTTPException)
    return False if network or type(link).__module__.partition(".")[0] in _NETWORK else None


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error from any library; None if the error has no status."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    names = [
        (error, "status"),
        (error, "status_code"),
        (error, "code"),
        (response, "status_code"),
        (response, "status"),
    ]
    values = (getattr(owner, name, None) for owner, name in names)  # lazily: aiohttp deprecates `code`
    return next((status for status in values if isinstance(status, int) and 300 <= status < 600), None)
