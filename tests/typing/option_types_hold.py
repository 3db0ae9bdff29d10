# SPDX-License-Identifier: Apache-2.0
"""Options as authors declare them: mypy accepts all of it and knows the types. Checked with the rest, never run."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal, assert_type, dataclass_transform

from forebay import HostOptions
from forebay.options import ByteSize, Duration, Secret, class_options, option, parse_options


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Base:
    """Like `Source`: without `field_specifiers`, so that `option(3)` counts as a default."""

    bounded: ClassVar[bool] = True


class Orders(Base):
    """The frozen user side."""

    bounded = False
    path: Annotated[str, "required, and checkers know it"]
    url: str = option(doc="base address")
    token: Secret = option(doc="API token")
    start: int = 10
    mode: Literal["a", "b"] = "a"
    other: Literal["a", "b"] = option("a")
    poll_interval: Duration = option("30s", doc="pause")
    close_timeout: Duration = option(Duration(0.5))
    max_bytes: ByteSize = option("128m")
    kafka: dict[str, str] = option(prefix="kafka.")
    retries: int = option(3, name="fetchOffset.numRetries", aliases=("fetchoffset.retries",), may_change=False)
    columns: list[str] | None = option(None, doc="only these")
    tables: list[str] = option(default_factory=list)
    keyword: float = option(default=0.5)


orders = Orders(path="p", url="u", token=Secret("t"), poll_interval=Duration("1m"), max_bytes=ByteSize("1k"), retries=4)
assert_type(orders.retries, int)
assert_type(orders.poll_interval, Duration)
assert_type(orders.poll_interval * 2, timedelta)
assert_type(orders.max_bytes + 1, int)
assert_type(orders.token.reveal(), str)
assert_type(orders.columns, list[str] | None)
host = HostOptions(discovery_interval=2, poll_interval="1s", close_timeout=timedelta(seconds=3), max_batch_delay=0.1)
assert_type(host.discovery_interval, Duration | None)
assert_type(host.poll_interval, Duration)
assert_type(parse_options(class_options(Orders), {}, source="orders"), dict[str, Any])
