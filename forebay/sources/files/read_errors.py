# SPDX-License-Identifier: Apache-2.0
"""Decides which read errors are ignored, and adds the path of the file to errors that a format raises."""

from __future__ import annotations

from forebay.errors import DataError
from forebay.formats.base import IGNORE_CORRUPT_FILES, FileFormat
from forebay.sources.files import catalog
from forebay.sources.files.scan import FileScan
from forebay.stores.stored_file import StoredFile


def is_ignored(source: FileScan, stored: StoredFile, error: DataError) -> bool:
    """Return whether the options allow a read to skip the rest of a file after this error.

    `ignoreMissingFiles` allows that for a missing file, `ignoreCorruptFiles` for a damaged one. An error that names
    another option (`mode`, `datetimeRebaseMode` …) or a position concerns one record and is never ignored.

    Raises:
        DataError: The file has changed since it was listed, so it is unknown which version was read.
        RetriableError: The store did not answer.
    """
    if error.option not in (None, IGNORE_CORRUPT_FILES) or error.position is not None:
        return False
    now = stored.now()
    if now is None:
        return source.ignore_missing_files
    if not stored.status.same_file(now):
        stored.verify_unchanged()  # apparent damage may be a half-written new version
    return source.ignore_corrupt_files


def is_readable(source: FileScan, file_format: FileFormat, stored: StoredFile) -> bool:
    """Return whether a file can be read to infer a schema; False if it cannot and the options allow skipping it.

    Raises:
        DataError: The file cannot be read, and the options do not allow skipping it.
    """
    try:
        file_format.infer_schema([stored])
    except DataError as error:
        if not is_ignored(source, stored, error):
            raise with_file(error, source, stored.path) from error.__cause__
        return False
    return True


def with_file(error: DataError, source: FileScan, path: str | None = None) -> DataError:
    """Add the source's name and the file's path to an error that a format raised; return the error.

    The default of `path` is the path that the format stored as the error's source.
    """
    if error.source != source.name:
        path, error.source = path or error.source, None
    by_suffix = catalog.format_of_path(path or "")
    if error.option in ("mode", IGNORE_CORRUPT_FILES) and by_suffix not in (None, source.format_name()):
        hint = f", or fileFormat is wrong: the suffix says {by_suffix}"
        error.advice = (error.advice or "").removesuffix(hint) + hint
    return error.with_context(source=source.name, split=path)
