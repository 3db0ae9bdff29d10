# SPDX-License-Identifier: Apache-2.0
"""Reads CSV files to record batches. Other packages use `format.CsvFormat` and `options.CsvOptions`.

`read` cuts a slice into blocks of whole records and finds the header. `splitting` splits a block into columns of tokens
(texts of values), with the tokenizer of `univocity` where Arrow does not do. `format` makes record batches from the
tokens, and infers the schema.
"""
