# SPDX-License-Identifier: Apache-2.0
"""The hybrid source: several sources that are read one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumeratorContext
from forebay.framework.reader import SourceReaderContext
from forebay.framework.source import Source
from forebay.framework.split_reader import SplitReader
from forebay.sources.hybrid.enumerator import HybridEnumerator
from forebay.sources.hybrid.legs import NAME, HybridLegs, Switch, checked_legs
from forebay.sources.hybrid.split_reader import HybridSplitReader


class HybridSource(HybridLegs):
    """Reads sources one after the other: history first, then live data (FLIP-150, HYB-1, HYB-2).

    ```python
    HybridSource(FileSource(path="orders/"), KafkaSource(subscribe="orders", ...))
    ```

    Every source but the last is read once: its splits and their ends are fixed when it begins. The next source begins
    when all these splits are finished. The hybrid calls `create_enumerator` and `create_split_reader` of its sources.

    Args:
        first: The source to read before the last one, or several sources in order. The hybrid reads an unbounded source
            to the end that it has when its turn begins.
        then: The last source. The hybrid is bounded if this source is bounded.
        switch: A function that gets `then` and the finished splits of the source before it. It returns `then` with
            another start, such as a time or an offset map that follows from the splits. It is called when these splits
            are finished, and again after a restart during the switch. It must return the same source for the same
            splits, and may change only the start. None = `then` starts where its options say; without such an option,
            at its earliest record.
        columns: The columns to read, if the sources have different columns. Types are cast if no value is lost.

    Raises:
        ConfigurationError: An argument is not a `Source`, or a source makes its own `SourceReader`.
    """

    name: ClassVar[str] = NAME

    def __init__(
        self,
        first: Source | Sequence[Source],
        then: Source,
        *,
        switch: Switch | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        earlier = [first] if isinstance(first, Source) else list(first)
        self._set(
            _legs=checked_legs([*earlier, then]), _switch=switch, _columns=None if columns is None else tuple(columns)
        )
        super().__post_init__()

    # Defined on this class: the decorator `dataclass` would generate an `__eq__` that compares no field, and that would
    # replace an `__eq__` of a base class.
    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, HybridSource)
            and type(self) is type(other)
            and (self.legs, self.switch, self._columns) == (other.legs, other.switch, other._columns)
        )

    def __hash__(self) -> int:
        return hash((type(self), len(self.legs)))

    def create_enumerator(self, context: SplitEnumeratorContext) -> DiscoveryEnumerator:
        """Create the enumerator, which discovers one source after the other."""
        return HybridEnumerator(self, context)

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Create the split reader, which creates the split reader of a source when it gets splits of this source."""
        return HybridSplitReader(self, context)
