# SPDX-License-Identifier: Apache-2.0
"""Segments that a node has opened, and which rows of them newer ones overrule."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from threading import Lock
from typing import Any, Final, Self
from zlib import crc32

from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.table.changelog.state.typed_values import UNREADABLE
from forebay.table.index.conditions import VALUES
from forebay.table.index.edits import KeyEdits
from forebay.table.index.segments import IndexSegment

COPY_AGAIN: Final = (
    "call refresh, which copies what is damaged again, and then ask again; if that is no help, Funnel.follow(full=True)"
)

_TOO_LARGE: Final = re.compile(r"too (large|many|long|complex)|stack overflow")
"""What SQLite says of statements that it does not run. All else says that the file cannot be read."""


class KeyFilter:
    """Finds that a key is absent, or that it may be there: a bit for the keys with each remainder of their checksum.

    Args:
        bits: The bits. Their number is a power of two.
    """

    def __init__(self, bits: bytes | bytearray) -> None:
        self._bits = bits
        self._last = 8 * len(bits) - 1

    @classmethod
    def of(cls, keys: Iterable[bytes], count: int) -> Self:
        """Return the filter of `count` keys."""
        bits = bytearray(1 << (4 * count).bit_length())
        last = 8 * len(bits) - 1
        for key in keys:
            place = crc32(key) & last
            bits[place >> 3] |= 1 << (place & 7)
        return cls(bits)

    def among(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of some keys that may be there."""
        bits, last = self._bits, self._last
        return [key for key in keys if bits[(place := crc32(key) & last) >> 3] >> (place & 7) & 1]

    def __or__(self, other: KeyFilter) -> KeyFilter:
        size = max(len(self._bits), len(other._bits))
        left, right = (int.from_bytes(each._bits * (size // len(each._bits))) for each in (self, other))  # noqa: SLF001
        return KeyFilter((left | right).to_bytes(size))


class OpenedSegment:
    """A segment that a node has opened. For any thread.

    Args:
        segment: Its description.
        connection: A connection to it. It is used within `reading` alone.
    """

    def __init__(self, segment: IndexSegment, connection: sqlite3.Connection) -> None:
        self.segment = segment
        self.connection = connection
        self.damaged = False
        self.keys = KeyFilter(b"\xff")
        self._lock = Lock()

    def __del__(self) -> None:
        self.connection.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give the connection to one thread at a time, with errors of `errors`.

        SQLite keeps an error in the connection, where the success of another thread hides it. No thread has the locks
        of two segments.
        """
        with self._lock, self.errors():
            yield self.connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Let an error of SQLite, or a key that is no bytes, become an error of forebay.

        Raises:
            RetriableError: The file cannot be read any more; the segment is marked as `damaged`.
            ConfigurationError: The statement has too many conditions.
        """
        try:
            yield
        except (sqlite3.Error, TypeError) as error:
            raise self.failure(error) from error

    def failure(self, error: Exception) -> ForebayError:
        """Return the error for one of reading; unless the statement is too large, mark the segment as `damaged`."""
        # Damage has other codes or none, and the text may have words of a row; FTS5 has this code with other texts.
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR and _TOO_LARGE.search(str(error)):
            return ConfigurationError(
                f"the query is too large for SQLite: {error}", option="where", advice="ask in several smaller queries"
            )
        self.damaged = True
        return RetriableError(
            f"the copy of the segment {self.segment.name} cannot be read any more: {error}",
            option="cache",
            advice=COPY_AGAIN,
        )

    def scan(self, statement: str, parameters: Sequence[Any] = ()) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a statement, some at a time; other threads read between."""
        with self.reading() as connection:
            cursor = connection.execute(statement, parameters)
            rows = cursor.fetchmany(VALUES)
        while rows:
            yield rows
            if len(rows) < VALUES:
                return
            with self.reading():
                rows = cursor.fetchmany(VALUES)

    def note_keys(self) -> None:
        """Read all keys, so that `find` seldom reads the file for a key that the segment does not have."""
        with self.reading() as connection:
            keys = connection.execute("SELECT k FROM o UNION ALL SELECT k FROM d")
            self.keys = KeyFilter.of((key for (key,) in keys), self.segment.rows + self.segment.deleted)

    def find(self, key: bytes) -> tuple[Any, ...] | None:
        """Return the row of a key; an empty one if it is deleted; None if the segment says nothing about it."""
        if not self.keys.among((key,)):
            return None
        with self.reading() as connection:
            row: tuple[Any, ...] | None = connection.execute("SELECT * FROM o WHERE k = ?", (key,)).fetchone()
            if row is not None or not self.segment.deleted:
                return row
            return () if connection.execute("SELECT 1 FROM d WHERE k = ?", (key,)).fetchone() else None

    def edits_of(self, key: bytes) -> KeyEdits:
        """Return the folded edits of a deleted key."""
        with self.reading() as connection:
            text = connection.execute("SELECT e FROM d WHERE k = ?", (key,)).fetchone()[0]
        try:
            return KeyEdits() if text is None else KeyEdits.of_text(text)
        except UNREADABLE as error:
            raise self.failure(error) from error

    def having(self, keys: Sequence[bytes]) -> set[bytes]:
        """Return those of some keys that the segment has, or that it says are deleted."""
        some, having = self.keys.among(keys), set[bytes]()
        for start in range(0, len(some), VALUES):
            chunk = some[start : start + VALUES]
            places = ", ".join("?" * len(chunk))
            with self.reading() as connection:
                for table in ("o", "d") if self.segment.deleted else ("o",):
                    rows = connection.execute(f"SELECT k FROM {table} WHERE k IN ({places})", chunk)
                    having.update(key for (key,) in rows)
        return having


@dataclass(frozen=True)
class Newer:
    """The runs that are newer than a segment, and overrule its rows.

    Args:
        run: The oldest one of them.
        others: The others; None: there are none.
    """

    run: tuple[OpenedSegment, ...] = ()
    others: Newer | None = None

    @cached_property
    def keys(self) -> KeyFilter:
        """The filter of the keys of all these runs."""
        return reduce(or_, (opened.keys for opened in self.run), self.others.keys if self.others else KeyFilter(b"\0"))

    def overruled(self, keys: Iterable[bytes]) -> set[bytes]:
        """Return those of some keys that these runs have, or say are deleted."""
        if not (some := self.keys.among(keys)):
            return set()
        gone = set() if self.others is None else self.others.overruled(some)
        return gone.union(*(opened.having(some) for opened in self.run))
