# SPDX-License-Identifier: Apache-2.0
"""Names that an enemy would write into a manifest, an offset, a listing or an archive, and what they must not touch."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

_PARTS = (
    "..", "..", "..", ".", "", "a", "in", "state", "victim", "victim.txt", "segments", "etc", "passwd", "~", "%2e%2e",
    "..%2f..", "..\\..", "a\x00b", "\x00", "\n", "\x1b[2J", "$(touch PWNED)", "`touch PWNED`", "; touch PWNED", "|id",
    "{0.__class__}", "{}", "%s%n", "'; DROP TABLE t; --", '"', "\ud800", "．．", "‥", "x" * 300, "é" * 200, "*", "C:",
    "file:", "s3:", "000000000001-base-0123456789abcdef", "000000000001.json", "v000000000001.json", "a.arrow", ".pth",
)  # fmt: skip


def hostile_names(seed: int, count: int, outside: Path) -> Iterator[str]:
    """Yield names that lead to `outside`, to other places, and some that are harmless."""
    rng = random.Random(seed)
    for _ in range(count):
        parts = rng.choices(_PARTS, k=rng.randint(1, 6))
        kind = rng.random()
        if kind < 0.25:
            parts = [*[".."] * rng.randint(1, 9), *outside.parts[1:], "victim.txt"]
        elif kind < 0.35:
            parts = [str(outside / "victim.txt")]
        elif kind < 0.45:
            parts = ["a", *[".."] * rng.randint(1, 4), outside.name, rng.choice(_PARTS)]
        elif kind < 0.5:
            parts = [f"{rng.choice(('file', 's3', 'http'))}://{outside}/victim.txt"]
        yield "/".join(parts)


_SQL = (
    '"', '""', '";', "'", "''", "$$", "$1", "%", "%s", "%(a)s", "%%", "{}", "{0}", "\\", "\\'", ".", "..", ",",
    "(", ")", ";", "--", "/*", "*/", " ", "\n", "\r\n", "\t", "\x1b[2J", "\u202e",
    "é", "e\u0301", "日", "🙂", "a", "A", "t", "s", "excluded", "public", "victim", "outside", "SELECT",
    "DROP TABLE victim", "DROP SCHEMA outside CASCADE", "COPY victim TO PROGRAM 'touch PWNED'",
    "ctid", "xmin", "tableoid", "pg_catalog", "pg_temp", "information_schema",
    "forebay_applied", "__tombstones", "__staging",
)  # fmt: skip


def hostile_sql_names(seed: int, count: int) -> Iterator[str]:
    """Yield names for schemas, tables, columns and constraints: with quotes, statements, placeholders, and too long."""
    rng = random.Random(seed)
    for _ in range(count):
        name = "".join(rng.choices(_SQL, k=rng.choice([1, 1, 2, 3, 4])))
        yield rng.choice(
            [name] * 20 + ["", f"{name}\x00", f"{name}\ud800", "x" * 63, name + "x" * 62, "é" * 31, "é" * 32]
        )


class Untouched:
    """A directory with files; `check` fails if anything in it is another than before."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("victim.txt", "segments/000000000001-base-0123456789abcdef", "deep/.hidden", "a"):
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        self._before = self._seen()

    def _seen(self) -> dict[str, tuple[int, int, bytes]]:
        found = {}
        for path in sorted(self.directory.rglob("*")):
            status = os.lstat(path)
            content = path.read_bytes() if path.is_file() else b""
            found[str(path)] = status.st_mode, status.st_mtime_ns, content
        return found

    def check(self) -> None:
        """Compare the directory with what it was."""
        assert self._seen() == self._before
