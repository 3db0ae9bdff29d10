# SPDX-License-Identifier: Apache-2.0
"""JSON files to record batches. Others take `format.JsonFormat` and `options.JsonOptions`.

`format` cuts a file into blocks of lines (or, for `multiLine`, `documents` takes it whole), and `blocks` makes batches
of them by the fastest way that says what Spark would: `forms` finds out whether all lines have one form (a `template`),
which `pieces` reads; else `arrow` has Arrow parse them; what is doubtful goes record by record through `quick`, and
what is odd even there through `exact`, on `tokens`, `scan` and `text`. `values` makes values of tokens, `build` makes
columns of values. `cells` reads texts in a column as Spark's `from_json` does, and `reasons` says why one is bad.
`infer` finds the schema: by `arrow_types` a block at once, or by `record_kinds`, one record at a time, and merges the
`kinds`.
"""
