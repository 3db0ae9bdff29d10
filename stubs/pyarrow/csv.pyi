# SPDX-License-Identifier: Apache-2.0
# pyarrow.csv: reading and writing delimited text.
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

from pyarrow.lib import (
    DataType,
    MemoryPool,
    RecordBatch,
    RecordBatchReader,
    Schema,
    Table,
    _Readable,
    _Weakrefable,
    _Writable,
)

class _ISO8601(_Weakrefable): ...

ISO8601: Final[_ISO8601]

class InvalidRow(NamedTuple):
    expected_columns: int
    actual_columns: int
    number: int | None
    text: str

class ReadOptions(_Weakrefable):
    use_threads: bool
    block_size: int
    skip_rows: int
    skip_rows_after_names: int
    column_names: Sequence[str] | None
    autogenerate_column_names: bool
    encoding: str
    def __init__(
        self,
        *,
        use_threads: bool | None = None,
        block_size: int | None = None,
        skip_rows: int | None = None,
        skip_rows_after_names: int | None = None,
        column_names: Sequence[str] | None = None,
        autogenerate_column_names: bool | None = None,
        encoding: str = "utf8",
    ) -> None: ...
    def equals(self, other: ReadOptions) -> bool: ...
    def validate(self) -> None: ...

class ParseOptions(_Weakrefable):
    delimiter: str
    quote_char: str | Literal[False]
    double_quote: bool
    escape_char: str | Literal[False]
    newlines_in_values: bool
    ignore_empty_lines: bool
    invalid_row_handler: Callable[[InvalidRow], str] | None
    def __init__(
        self,
        *,
        delimiter: str | None = None,
        quote_char: str | Literal[False] | None = None,
        double_quote: bool | None = None,
        escape_char: str | Literal[False] | None = None,
        newlines_in_values: bool | None = None,
        ignore_empty_lines: bool | None = None,
        invalid_row_handler: Callable[[InvalidRow], str] | None = None,
    ) -> None: ...
    def equals(self, other: ParseOptions) -> bool: ...
    def validate(self) -> None: ...

class ConvertOptions(_Weakrefable):
    check_utf8: bool
    # What is read back is a dict, whatever was given: a Schema or a mapping may be given.
    column_types: Schema | Mapping[str, DataType] | None
    null_values: Sequence[str]
    true_values: Sequence[str]
    false_values: Sequence[str]
    decimal_point: str
    strings_can_be_null: bool
    quoted_strings_can_be_null: bool
    include_columns: Sequence[str] | None
    include_missing_columns: bool
    auto_dict_encode: bool
    auto_dict_max_cardinality: int
    timestamp_parsers: Sequence[str | _ISO8601]
    def __init__(
        self,
        *,
        check_utf8: bool | None = None,
        column_types: Schema | Mapping[str, DataType] | None = None,
        default_column_type: DataType | None = None,
        null_values: Sequence[str] | None = None,
        true_values: Sequence[str] | None = None,
        false_values: Sequence[str] | None = None,
        decimal_point: str | None = None,
        strings_can_be_null: bool | None = None,
        quoted_strings_can_be_null: bool | None = None,
        include_columns: Sequence[str] | None = None,
        include_missing_columns: bool | None = None,
        auto_dict_encode: bool | None = None,
        auto_dict_max_cardinality: int | None = None,
        timestamp_parsers: Sequence[str | _ISO8601] | None = None,
    ) -> None: ...
    def equals(self, other: ConvertOptions) -> bool: ...
    def validate(self) -> None: ...

class WriteOptions(_Weakrefable):
    include_header: bool
    batch_size: int
    delimiter: str
    quoting_style: Literal["needed", "all_valid", "none"]
    def __init__(
        self,
        *,
        include_header: bool | None = None,
        batch_size: int | None = None,
        delimiter: str | None = None,
        quoting_style: Literal["needed", "all_valid", "none"] | None = None,
    ) -> None: ...
    def validate(self) -> None: ...

class CSVStreamingReader(RecordBatchReader): ...

class CSVWriter(_Weakrefable):
    def __init__(
        self,
        sink: _Writable,
        schema: Schema,
        *,
        write_options: WriteOptions | None = None,
        memory_pool: MemoryPool | None = None,
    ) -> None: ...
    def write(self, table_or_batch: Table | RecordBatch) -> None: ...
    def write_batch(self, batch: RecordBatch, custom_metadata: Mapping[Any, Any] | None = None) -> None: ...
    def write_table(self, table: Table, max_chunksize: int | None = None) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None: ...

def read_csv(
    input_file: _Readable,
    read_options: ReadOptions | None = None,
    parse_options: ParseOptions | None = None,
    convert_options: ConvertOptions | None = None,
    memory_pool: MemoryPool | None = None,
) -> Table: ...
def open_csv(
    input_file: _Readable,
    read_options: ReadOptions | None = None,
    parse_options: ParseOptions | None = None,
    convert_options: ConvertOptions | None = None,
    memory_pool: MemoryPool | None = None,
) -> CSVStreamingReader: ...
def write_csv(
    data: RecordBatch | Table,
    output_file: _Writable,
    write_options: WriteOptions | None = None,
    memory_pool: MemoryPool | None = None,
) -> None: ...
