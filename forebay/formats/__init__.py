# SPDX-License-Identifier: Apache-2.0
"""Bytes of files to Arrow record batches: one module or package per format, and what text-like formats share.

Sources use the formats through `base.FileFormat`. The formats are `csv.format`, `json.format`, `orc.format`,
`parquet.format`, `text` and `binary_file`. They are imported on use, because each loads its own part of Arrow.
"""
