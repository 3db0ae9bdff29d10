# SPDX-License-Identifier: Apache-2.0
"""The exception for bytes that are not valid Avro, and its translation to a DataError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forebay.formats.base import damaged_file


class Malformed(ValueError):
    """Bytes that are not valid Avro."""


@contextmanager
def wrap_damage(path: str) -> Iterator[None]:
    """If the `with` block raises Malformed, raise the DataError for a damaged file instead."""
    try:
        yield
    except Malformed as error:
        raise damaged_file(f"{path} is not a complete Avro file: {error}") from error
