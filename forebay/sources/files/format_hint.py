# SPDX-License-Identifier: Apache-2.0
"""The file format by the suffixes of paths and files, where the user gives none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forebay.errors import ConfigurationError
from forebay.sources.files import catalog
from forebay.stores.file_status import FileStatus


def format_of_paths(paths: Sequence[str], source: str) -> str | None:
    """Return the format by the suffixes of the user's paths; None if a path has no known suffix.

    Raises:
        ConfigurationError: The suffixes name several formats.
    """
    told = {catalog.format_of_path(path) for path in paths}
    if len(told) == 1:
        return told.pop()
    if None in told:
        return None
    raise ConfigurationError(
        f"the file format is not given, and the suffixes of the paths do not agree on one: {_counted(paths)}",
        source=source,
        option="fileFormat",
        advice=f"give fileFormat as one of {', '.join(catalog.NAMES)}",
    )


def format_of_files(files: Sequence[FileStatus]) -> str | None:
    """Return the format by the suffixes of listed files; None if they differ."""
    told = {catalog.format_of_path(file.path) for file in _with_content(files)}
    return told.pop() if len(told) == 1 else None


def unknown_format(paths: Sequence[str], files: Sequence[FileStatus], source: str) -> ConfigurationError:
    """Return the error for files whose suffixes name no format, or several."""
    below = f"below {', '.join(paths)}"
    what = f"there are no files {below} to tell it"
    if files:
        what = f"the suffixes of the files {below} do not tell one: "
        what += _counted([file.path for file in _with_content(files)])
    return ConfigurationError(
        f"the file format is not given, and {what}",
        source=source,
        option="fileFormat",
        advice=f"give fileFormat as one of {', '.join(catalog.NAMES)}",
    )


def _counted(paths: Sequence[str]) -> str:
    """Return the suffixes of some paths, each with how many have it, the most frequent ones first."""
    counts = Counter(catalog.suffix_of_path(path) or "no suffix" for path in paths)
    shown = [f"{count} × {suffix}" for suffix, count in counts.most_common(8)]
    return ", ".join([*shown, "…"] if len(counts) > len(shown) else shown)


def _with_content(files: Sequence[FileStatus]) -> Sequence[FileStatus]:
    """Return the files that hold something: an empty one says nothing of the others. All of them if all are empty."""
    return [file for file in files if file.size] or files
