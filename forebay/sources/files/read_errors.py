# SPDX-License-Identifier: Apache-2.0
"""What a failed read of a file means: a damaged file, a missing one, a changed one, or a record that must not be."""

from __future__ import annotations

from forebay.errors import DataError
from forebay.formats.base import FileFormat
from forebay.sources.files import catalog
from forebay.sources.files.scan import FileScan
from forebay.stores.stored_file import StoredFile


def excused(source: FileScan, stored: StoredFile, error: DataError) -> bool:
    """Whether the user said to go on without (the rest of) a file that could not be read.

    A file that is gone is a matter of `ignoreMissingFiles`, a damaged one of `ignoreCorruptFiles`. An error that names
    an option of its own (`mode`, `datetimeRebaseMode` …) or a place in the file is about a record and has nothing to
    do with either. A file that has changed since it was listed is never passed over: nobody knows what of it was read.

    Called on a fetcher thread, and on the planning thread when a schema is inferred.

    Raises:
        DataError: The file has changed since it was listed.
        RetriableError: The store did not answer.
    """
    if error.option is not None or error.position is not None:
        return False
    now = stored.now()
    if now is None:
        return source.ignore_missing_files
    if not stored.status.same_file(now):
        # Damage that was seen may be that of a half-written new file: say what happened, not what it looked like.
        stored.verify_unchanged()
    return source.ignore_corrupt_files


def readable(source: FileScan, file_format: FileFormat, stored: StoredFile) -> bool:
    """Whether a file can be looked into for its schema. Called only after looking into all of them has failed.

    Raises:
        DataError: It cannot, and that is not to be passed over.
    """
    try:
        file_format.infer_schema([stored])
    except DataError as error:
        if not excused(source, stored, error):
            raise placed(error, source, stored.path) from error.__cause__
        return False
    return True


def placed(error: DataError, source: FileScan, path: str | None = None) -> DataError:
    """Fill in which source and which file an error is about. A format knows the path only and calls that its source."""
    if error.source != source.name:
        path, error.source = path or error.source, None
    told = catalog.format_of_path(path or "")
    damaged = error.option == "mode" or "ignoreCorruptFiles" in (error.advice or "")
    if damaged and error.advice and told not in (None, source.format_name()):
        hint = f", or fileFormat is wrong: the suffix says {told}"
        error.advice = error.advice.removesuffix(hint) + hint
    return error.located(source=source.name, split=path)
