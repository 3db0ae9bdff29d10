# SPDX-License-Identifier: Apache-2.0
"""Bytes of files to Arrow record batches: one module or package per format, and what text-like formats share.

`base.FileFormat` is what a source sees of each; the formats are `csv.format`, `json.format`, `parquet.format` and
`text`. Nothing here imports them ahead: each brings its own part of Arrow along.
"""
