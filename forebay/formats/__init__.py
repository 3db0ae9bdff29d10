# SPDX-License-Identifier: Apache-2.0
"""The file formats: each reads the bytes of a file as Arrow record batches.

Sources use the formats through `base.FileFormat`. The formats are `avro.format`, `csv.format`, `json.format`,
`orc.format`, `parquet.format`, `text` and `binary_file`. They are imported on use, because each loads
its own part of Arrow.
"""
