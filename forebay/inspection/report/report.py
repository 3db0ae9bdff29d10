# SPDX-License-Identifier: Apache-2.0
"""`forebay.report`: writes an HTML file with the watermarks, waits, lag and dropped rows of a streaming query."""

from __future__ import annotations

import os
from pathlib import Path

from forebay.errors import ConfigurationError
from forebay.inspection.report.history import histories
from forebay.inspection.report.page import page


def report(query_or_directory: object, file: str | os.PathLike[str] = "forebay-report.html") -> str:
    """Write the history of a streaming query as one HTML file, which opens offline and without JavaScript.

    The file shows over time: the watermarks of the splits and of Spark, held and idle splits, the lag, and the rows
    that Spark's watermark dropped.

    Args:
        query_or_directory: A running or finished `StreamingQuery` (Spark keeps its last 100 reports), a directory that
            `record_progress` wrote, or a local checkpoint directory (without lag and dropped rows).
        file: The file to write; an existing one is replaced.

    Returns:
        The path of the file.

    Raises:
        ConfigurationError: The query or directory has no progress, or the file cannot be written.
    """
    found = histories(query_or_directory)
    if not found:
        raise ConfigurationError(
            f"{query_or_directory!r} has no progress to report",
            advice="give a streaming query after its first micro-batch, a directory that forebay.record_progress "
            "wrote, or the checkpoint directory of a query with alignmentMaxDrift",
        )
    path = Path(file)
    try:
        path.write_text(page(found), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"the report cannot be written: {error}", advice="give another file") from error
    return str(path)
