# SPDX-License-Identifier: Apache-2.0
"""Reads Parquet files to record batches. Other packages use `format.ParquetFormat` and `format.ParquetOptions`."""
