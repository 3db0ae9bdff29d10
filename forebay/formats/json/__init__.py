# SPDX-License-Identifier: Apache-2.0
"""Reads JSON. Other rooms import `format.JsonFormat`, `options.JsonOptions` and `cells.CellReader`.

`format` cuts a file into blocks of lines (`documents` reads it whole for `multiLine`), and `blocks` turns them into
batches by three tiers: `uniform/`, Arrow (`arrow`, `tiers`), and records one by one (`stdlib_reader`, `jackson/`).
`build` makes columns from the values of records. `cells` reads texts in a column. `inference/` finds the schema.
"""
