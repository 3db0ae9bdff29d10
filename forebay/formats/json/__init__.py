# SPDX-License-Identifier: Apache-2.0
"""Reads JSON. Other packages import `format.JsonFormat`, `options.JsonOptions` and `cells.CellReader`.

`format` cuts a file into blocks of lines (`documents` reads it whole for `multiLine`), and `blocks` turns them into
record batches with three readers ("tiers"): `uniform`, Arrow (`arrow`), and records one by one
(`stdlib_reader`, `jackson`). `cells` reads a column of JSON texts.
`inference` finds the schema.
"""
