# SPDX-License-Identifier: Apache-2.0
"""Commits files that Spark reads, for the command line: the definition is the one that serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from forebay.errors import ConfigurationError
from forebay.spark.index.funnel import Funnel
from forebay.table.index.pipelines import IndexStore
from forebay.table.index.transactions import Committed


def commit_files(
    index: IndexStore,
    datasource: str,
    path: str,
    read_format: str,
    read_options: Mapping[str, str],
    **options: Any,  # noqa: ANN401 - of `Funnel.commit`
) -> Committed:
    """Commit what Spark reads from a path to a datasource of an object type that was defined before.

    Args:
        index: The store.
        datasource: The datasource.
        path: What Spark reads.
        read_format: The format of the files.
        read_options: Options of the reader.
        options: See `Funnel.commit`.

    Raises:
        ConfigurationError: There is no such object type yet, or Spark cannot read the path.
    """
    definition = index.definition(index.head().serving)
    assert definition is not None  # noqa: S101 - the log has begun
    spark = SparkSession.builder.appName("forebay index commit").getOrCreate()
    try:
        rows = spark.read.format(read_format).options(**read_options).load(path)
    except AnalysisException as error:
        raise ConfigurationError(
            f"Spark cannot read {path!r} as {read_format}: {error.getMessage()}",
            option="path",
            advice="check the path, --format and --read-option",
        ) from error
    return Funnel(index.location, definition, storage=index.storage).commit(datasource, rows, **options)
