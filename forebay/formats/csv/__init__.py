# SPDX-License-Identifier: Apache-2.0
"""Reads CSV files to record batches. Other rooms use `format.CsvFormat` and `options.CsvOptions`.

`read` cuts a slice into blocks of whole records and finds the header with `header`; `splitting/` splits a block into
columns of tokens; `rows` makes record batches from them with the converters of `values`. `infer` reads the same tokens.
"""
