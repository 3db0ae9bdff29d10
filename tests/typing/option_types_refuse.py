# SPDX-License-Identifier: Apache-2.0
"""Options declared or given wrongly: mypy must refuse each line, in the same way as for Arrow."""

from __future__ import annotations

from forebay import HostOptions
from forebay.options import Secret, option
from tests.typing.option_types_hold import Orders, orders

a: int = option(3.5)  # type: ignore[assignment]
b: int = option(default_factory=list)  # type: ignore[assignment]
c: int = option(None)  # type: ignore[assignment]
option(1, default_factory=int)  # type: ignore[call-overload]
option(docs="x")  # type: ignore[call-overload]
option(1, may_change="no")  # type: ignore[call-overload]
Orders(url="u", token=Secret("t"))  # type: ignore[call-arg]
Orders(path="p", retries="3")  # type: ignore[arg-type]
Orders(path="p", poll_interval=5)  # type: ignore[arg-type]
Orders(path="p", token="t")  # type: ignore[arg-type]
Orders(path="p", mode="c")  # type: ignore[arg-type]
orders.start = 5  # type: ignore[misc]
HostOptions(poll_interval=None)  # type: ignore[arg-type]
HostOptions(discovery_interval=[])  # type: ignore[arg-type]
"Bearer " + orders.token  # type: ignore[operator]
