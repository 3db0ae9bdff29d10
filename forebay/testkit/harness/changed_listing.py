# SPDX-License-Identifier: Apache-2.0
"""Shows a connector a directory as it was, or as the file system may list it: a file less, another order, other times.

So `check` sees what happens to the ids of splits while an input grows, and changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

Listed = dict[str, list[str]]
"""The names that were listed, by directory."""


@contextmanager
def listings(change: Callable[[str, list[str]], list[str]], *, later: bool = False) -> Iterator[Listed]:
    """Change what `os.listdir`, `os.scandir` and `os.stat` return in the block. Yield the directories that are listed.

    Args:
        change: Returns the names of a directory, from its path and its names in order.
        later: Whether files are a second younger, and a byte longer, than they are.
    """
    listed: Listed = {}
    listdir, scandir, status = os.listdir, os.scandir, os.stat

    def changed_listdir(path: Any = ".") -> Any:  # noqa: ANN401 - as in os
        names = listdir(path)
        if isinstance(path, int) or not all(isinstance(name, str) for name in names):
            return names
        return _changed(os.fspath(path), names)

    def changed_scandir(path: Any = ".") -> Any:  # noqa: ANN401 - as in os
        with scandir(path) as entries:
            found = {entry.name: entry for entry in entries}
        if isinstance(path, int) or not all(isinstance(name, str) for name in found):
            return _Entries(list(found.values()))
        chosen = [found[name] for name in _changed(os.fspath(path), list(found)) if name in found]
        return _Entries([_Entry(entry) for entry in chosen] if later else chosen)

    def _changed(path: object, names: list[str]) -> list[str]:
        listed[str(path)] = sorted(names)
        return change(str(path), sorted(names))

    def changed_stat(*args: Any, **kwargs: Any) -> os.stat_result:  # noqa: ANN401 - as in os
        return _later(status(*args, **kwargs))

    os.listdir, os.scandir = changed_listdir, changed_scandir
    if later:
        os.stat = changed_stat
    try:
        yield listed
    finally:
        os.listdir, os.scandir, os.stat = listdir, scandir, status


def _later(found: os.stat_result) -> os.stat_result:
    """Return the status of a file that was written to a second later."""
    if not stat.S_ISREG(found.st_mode):
        return found
    fields = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
    for name in ("st_mtime", "st_ctime"):
        fields[name] += 1.0
        fields[f"{name}_ns"] += 1_000_000_000
    values = list(found)
    values[6], values[8], values[9] = found.st_size + 1, values[8] + 1, values[9] + 1
    return os.stat_result(values, fields)


class _Entries:
    """The entries of a directory, as `os.scandir` returns them."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:  # noqa: ANN401 - an entry
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: the directory is closed already."""


class _Entry:
    """An `os.DirEntry` whose file was written to a second later."""

    def __init__(self, entry: Any) -> None:  # noqa: ANN401 - an entry
        self._entry = entry

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of an entry
        return getattr(self._entry, name)

    def __fspath__(self) -> Any:  # noqa: ANN401 - str or bytes
        return self._entry.__fspath__()

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the changed status."""
        return _later(self._entry.stat(follow_symlinks=follow_symlinks))
