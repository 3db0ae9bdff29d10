# SPDX-License-Identifier: Apache-2.0
"""A source as authors write it: type checkers know its options as the arguments of its constructor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

import pyarrow as pa

from forebay.framework.simple import SimpleSource
from forebay.framework.split import Split
from forebay.options import option


class Orders(SimpleSource):
    """Every way to declare an option."""

    url: str = option(doc="base address")
    page: int = option(default=500, doc="rows of a page")
    region: str | None = None

    def schema(self) -> pa.Schema:
        """Return the schema."""
        return pa.schema({"id": pa.int64()})

    def read(self, split: Split) -> Iterator[dict[str, object]]:
        """Yield one row."""
        yield {"id": split.position, "url": self.url}


def use() -> None:
    """Options are keyword arguments, those with a default may be left out."""
    assert_type(Orders(url="http://x"), Orders)
    assert_type(Orders(url="http://x", page=10, region="eu").page, int)
