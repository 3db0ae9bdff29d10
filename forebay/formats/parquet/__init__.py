# SPDX-License-Identifier: Apache-2.0
"""Parquet files to record batches. Others take `format.ParquetFormat` and `format.ParquetOptions`.

`format` opens a file through `open`, which tells damage from failures of the storage; `schema` reads the footer as
Spark does, with the `types` of the schema that Spark left in it; `convert` makes each column what the asked schema
wants, and `rebase` moves the old dates in it between calendars.
"""
