# SPDX-License-Identifier: Apache-2.0
# pyarrow.ipc: record batches as bytes.
from pyarrow.lib import (
    Buffer,
    MemoryPool,
    RecordBatch,
    Schema,
    _Metadata,
    _Readable,
    _RecordBatchFileReader,
    _RecordBatchFileWriter,
    _RecordBatchStreamReader,
    _RecordBatchStreamWriter,
    _Writable,
)
from pyarrow.lib import (
    IpcReadOptions as IpcReadOptions,
)
from pyarrow.lib import (
    IpcWriteOptions as IpcWriteOptions,
)
from pyarrow.lib import (
    Message as Message,
)
from pyarrow.lib import (
    RecordBatchReader as RecordBatchReader,
)

class RecordBatchStreamReader(_RecordBatchStreamReader):
    def __init__(
        self, source: _Readable, *, options: IpcReadOptions | None = None, memory_pool: MemoryPool | None = None
    ) -> None: ...

class RecordBatchFileReader(_RecordBatchFileReader):
    def __init__(
        self,
        source: _Readable,
        footer_offset: int | None = None,
        *,
        options: IpcReadOptions | None = None,
        memory_pool: MemoryPool | None = None,
    ) -> None: ...

class RecordBatchStreamWriter(_RecordBatchStreamWriter):
    def __init__(self, sink: _Writable, schema: Schema, *, options: IpcWriteOptions | None = None) -> None: ...

class RecordBatchFileWriter(_RecordBatchFileWriter):
    def __init__(
        self,
        sink: _Writable,
        schema: Schema,
        *,
        options: IpcWriteOptions | None = None,
        metadata: _Metadata = None,
    ) -> None: ...

def new_stream(
    sink: _Writable, schema: Schema, *, options: IpcWriteOptions | None = None
) -> RecordBatchStreamWriter: ...
def open_stream(
    source: _Readable, *, options: IpcReadOptions | None = None, memory_pool: MemoryPool | None = None
) -> RecordBatchStreamReader: ...
def new_file(
    sink: _Writable, schema: Schema, *, options: IpcWriteOptions | None = None, metadata: _Metadata = None
) -> RecordBatchFileWriter: ...
def open_file(
    source: _Readable,
    footer_offset: int | None = None,
    *,
    options: IpcReadOptions | None = None,
    memory_pool: MemoryPool | None = None,
) -> RecordBatchFileReader: ...
def get_record_batch_size(batch: RecordBatch) -> int: ...
def read_message(source: _Readable) -> Message: ...
def read_record_batch(obj: Message | Buffer | bytes, schema: Schema, dictionary_memo: object = None) -> RecordBatch: ...
def read_schema(obj: Message | Buffer | bytes, dictionary_memo: object = None) -> Schema: ...
