# SPDX-License-Identifier: Apache-2.0
"""The one view of a file that formats need: its name, its size, and a way to open it."""

from __future__ import annotations

from typing import BinaryIO, Protocol


class InputFile(Protocol):
    """A readable file, wherever it lives. Frozen and picklable; safe to use from any thread."""

    @property
    def path(self) -> str:
        """The full URL or path, as the user would name it in an error."""

    @property
    def size(self) -> int:
        """The size in bytes at the time of listing (compressed size for a compressed file)."""

    def open(self) -> BinaryIO:
        """Open for reading, seekable, unbuffered or lightly buffered; the caller closes it.

        Raises:
            DataError: The file is gone, or is no longer the file that was listed.
        """
