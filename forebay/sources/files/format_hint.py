# SPDX-License-Identifier: Apache-2.0
"""Infers the file format from the suffixes of paths and files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forebay.errors import ConfigurationError
from forebay.sources.files import catalog
from forebay.stores.file_status import FileStatus


def format_of_paths(paths: Sequence[str], source: str) -> str | None:
    """Return the file format that the suffixes of the user's paths name; None if a path has no known suffix.

    Raises:
        ConfigurationError: The suffixes name several formats.
    """
    found = {catalog.format_of_path(path) for path in paths}
    if len(found) == 1 or None in found:
        return found.pop() if len(found) == 1 else None
    raise _no_format(f"the suffixes of the paths name several formats: {_counted(paths)}", source)


def format_of_files(files: Sequence[FileStatus]) -> str | None:
    """Return the format that the suffixes of listed files name; None if the suffixes differ."""
    found = {catalog.format_of_path(file.path) for file in files if file.size}
    found = found or {catalog.format_of_path(file.path) for file in files}
    return found.pop() if len(found) == 1 else None


def unknown_format(paths: Sequence[str], files: Sequence[FileStatus], source: str) -> ConfigurationError:
    """Return the error for files whose suffixes name no format, or several."""
    below = f"below {', '.join(paths)}"
    if not files:
        return _no_format(f"there are no files {below} to infer the format from", source)
    suffixes = _counted([file.path for file in _with_content(files)])
    return _no_format(f"the suffixes of the files {below} do not identify one format: {suffixes}", source)


def _no_format(why: str, source: str) -> ConfigurationError:
    return ConfigurationError(
        f"the option fileFormat is not set, and {why}",
        source=source,
        option="fileFormat",
        advice=f"set fileFormat to one of {', '.join(catalog.names())}",
    )


def _counted(paths: Sequence[str]) -> str:
    """Return a text with the most frequent suffixes of the paths and their counts."""
    counts = Counter(catalog.suffix_of_path(path) or "no suffix" for path in paths)
    shown = [f"{count} × {suffix}" for suffix, count in counts.most_common(8)]
    return ", ".join([*shown, "…"] if len(counts) > len(shown) else shown)


def _with_content(files: Sequence[FileStatus]) -> Sequence[FileStatus]:
    """Return the files that are not empty; all of `files` if every file is empty."""
    return [file for file in files if file.size] or files
