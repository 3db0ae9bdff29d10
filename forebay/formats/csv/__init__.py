# SPDX-License-Identifier: Apache-2.0
"""CSV files to record batches. Others take `format.CsvFormat` and `options.CsvOptions`.

`format` reads a slice of a file: `read` opens it, lets `header` find the header line, and hands out blocks of whole
records; `lines` (or `records`, for `multiLine`) splits a block into columns of tokens. Both stand on `split`: what
`grammar` proves well-formed is split by Arrow (`arrow`), the odd rest by `tokenizer`, which walks with a `cursor`.
`rows` then makes record batches: `values` converts the columns, with `times`, `columns` and, one value at a time,
`scalars`. `infer` reads the same tokens for the schema, and `types` knows which types they may have. `rules` is what a
tokenizer needs to know of the options.
"""
