# SPDX-License-Identifier: Apache-2.0
"""Reads JSON. Other packages import `format.JsonFormat`, `options.JsonOptions` and `cells.CellReader`.

`format` cuts a file into blocks of lines, or reads it whole for `multiLine`. `blocks` turns blocks into record batches
with readers ("tiers"): lines of one form (`uniform`), lines by Arrow (`arrow`), and the rest record by record
(`jackson`). `cells` reads a column of JSON texts. `inference` finds the schema, by Arrow and record by record.
"""
