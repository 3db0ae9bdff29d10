# SPDX-License-Identifier: Apache-2.0
# What forebay uses of pyarrow.dataset.
from collections.abc import Iterator

from pyarrow.lib import NativeFile, RecordBatch

class Scanner:
    def to_batches(self) -> Iterator[RecordBatch]: ...

class Fragment:
    def scanner(
        self,
        *,
        batch_size: int = ...,
        batch_readahead: int = ...,
        fragment_readahead: int = ...,
        use_threads: bool = ...,
    ) -> Scanner: ...

class OrcFileFormat:
    def make_fragment(self, file: NativeFile) -> Fragment: ...
