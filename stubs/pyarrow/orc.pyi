# SPDX-License-Identifier: Apache-2.0
# pyarrow.orc: reading and writing ORC files.
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from pyarrow.lib import KeyValueMetadata, RecordBatch, Schema, Table, _Readable, _Writable

class ORCFile:
    def __init__(self, source: _Readable) -> None: ...
    @property
    def metadata(self) -> KeyValueMetadata | None: ...
    @property
    def schema(self) -> Schema: ...
    @property
    def nrows(self) -> int: ...
    @property
    def nstripes(self) -> int: ...
    @property
    def file_version(self) -> str: ...
    @property
    def compression(self) -> str: ...
    @property
    def content_length(self) -> int: ...
    @property
    def file_length(self) -> int: ...
    def read_stripe(self, n: int, columns: Sequence[str | int] | None = None) -> RecordBatch: ...
    def read(self, columns: Sequence[str | int] | None = None) -> Table: ...

class ORCWriter:
    is_open: bool
    def __init__(
        self,
        where: _Writable,
        *,
        file_version: str = "0.12",
        batch_size: int = 1024,
        stripe_size: int = 67108864,
        compression: str = "uncompressed",
        compression_block_size: int = 65536,
        compression_strategy: str = "speed",
        row_index_stride: int = 10000,
        padding_tolerance: float = 0.0,
        dictionary_key_size_threshold: float = 0.0,
        bloom_filter_columns: Any = None,
        bloom_filter_fpp: float = 0.05,
    ) -> None: ...
    def write(self, table: Table) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None: ...

def read_table(source: Any, columns: Sequence[str | int] | None = None, filesystem: Any = None) -> Table: ...
def write_table(
    table: Table,
    where: _Writable,
    *,
    file_version: str = "0.12",
    batch_size: int = 1024,
    stripe_size: int = 67108864,
    compression: str = "uncompressed",
    compression_block_size: int = 65536,
    compression_strategy: str = "speed",
    row_index_stride: int = 10000,
    padding_tolerance: float = 0.0,
    dictionary_key_size_threshold: float = 0.0,
    bloom_filter_columns: Any = None,
    bloom_filter_fpp: float = 0.05,
) -> None: ...
