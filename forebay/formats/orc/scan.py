# SPDX-License-Identifier: Apache-2.0
"""Runs Arrow's ORC reader over one stripe, and distinguishes damage from errors of the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import pyarrow as pa
import pyarrow.dataset as ds

from forebay.errors import ForebayError
from forebay.formats.orc.projection import StripeFile
from forebay.formats.orc.wire import Malformed

_FORMAT = ds.OrcFileFormat()
_AHEAD = 2
"""How many batches to take after closing the file: the one that Arrow was reading, and one that finds it closed."""


def scan_stripe(file: StripeFile, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a stripe in batches of at most `rows`.

    Raises:
        Malformed: The stripe is damaged. Errors of the store pass unchanged.
    """
    try:
        fragment = _FORMAT.make_fragment(pa.PythonFile(file, mode="r"))
        scanner = fragment.scanner(batch_size=rows, batch_readahead=0, fragment_readahead=0, use_threads=False)
        batches = scanner.to_batches()
        try:
            while (batch := next(batches, None)) is not None:  # `yield from` would close them
                yield batch
        finally:
            _end(file, batches)
    except (ForebayError, MemoryError):
        raise
    except (pa.ArrowException, OSError) as error:
        if file.failure is not None:
            raise file.failure from None
        raise Malformed(str(error)) from error


def _end(file: StripeFile, batches: Iterator[pa.RecordBatch]) -> None:
    """Close `file`, and wait until Arrow's thread stops reading ahead. Then the ORC file may be closed or reused."""
    file.close()
    with suppress(pa.ArrowException, OSError):
        for _ in islice(batches, _AHEAD):
            pass
