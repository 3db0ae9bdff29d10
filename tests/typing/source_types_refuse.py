# SPDX-License-Identifier: Apache-2.0
"""A source made wrongly: mypy must refuse each marked line and no other, in the same way as for Arrow."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from forebay.framework.simple import SimpleSource
from forebay.framework.split import Split
from forebay.options import option


class Orders(SimpleSource):
    url: str = option(doc="base address")
    page: int = option(default=500, doc="rows of a page")

    def schema(self) -> pa.Schema:
        return pa.schema({"id": pa.int64()})

    def read(self, split: Split) -> Iterator[dict[str, object]]:
        yield {"id": split.position}


def wrong() -> None:
    Orders()  # type: ignore[call-arg]
    Orders(url=1)  # type: ignore[arg-type]
    Orders("http://x")  # type: ignore[call-arg]
    Orders(url="http://x", pages=1)  # type: ignore[call-arg]
    Orders(url="http://x").page = 3  # type: ignore[misc]
    number: str = Orders(url="http://x").page  # type: ignore[assignment]
