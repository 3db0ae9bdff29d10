# SPDX-License-Identifier: Apache-2.0
"""The rules of the fault proxy: which requests fail, and how."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, get_args
from urllib.parse import urlsplit

from forebay.errors import ConfigurationError

FaultKind = Literal[
    "delay",
    "internal_error",
    "slow_down",
    "changed",
    "reset",
    "cut_before_head",
    "cut_after_head",
    "truncate",
    "reset_in_body",
    "silence",
]


@dataclass(frozen=True)
class Fault:
    """A rule: which requests fail, and how.

    Args:
        kind: What happens to the request. docs/writing-a-source.md explains the kinds.
        method: The HTTP method of the requests that match; None for every method.
        path: Only requests whose path with query, decoded, matches this pattern (`*`, `?`, `[…]`).
        nth: The numbers of the matching requests to fail, counted from 1; empty for all.
        probability: The probability of the fault for a matching request.
        seconds: How long `delay` waits.

    Raises:
        ConfigurationError: The kind is unknown, or the probability is not between 0 and 1.
    """

    kind: FaultKind
    method: str | None = None
    path: str = "*"
    nth: Collection[int] = ()
    probability: float = 1.0
    seconds: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in get_args(FaultKind):
            raise ConfigurationError(
                f"{self.kind!r} is not a kind of fault", advice=f"use one of: {', '.join(get_args(FaultKind))}"
            )
        if not 0 <= self.probability <= 1:
            raise ConfigurationError(
                f"a probability of {self.probability} is not between 0 and 1",
                advice="use 1 for every request, or 0.5 for every second one on average",
            )


class Request(NamedTuple):
    """A request that the proxy received.

    Args:
        method: The HTTP method.
        target: The path and query, as sent.
        range: The header `Range`; None if the request has none.
        fault: The kind of fault that the proxy injected; None if the proxy injected none.
    """

    method: str
    target: str
    range: str | None
    fault: FaultKind | None

    @property
    def operation(self) -> str:
        """The method; S3's listings and ranged reads have their own names: `GET list`, `GET range`, `GET`, `PUT`."""
        if "list-type=" in urlsplit(self.target).query:
            return f"{self.method} list"
        return self.method if self.range is None else f"{self.method} range"


class Rule:
    """A fault, and the number of requests that have matched it. Guarded by the proxy's lock."""

    def __init__(self, fault: Fault, seed: str) -> None:
        self.fault = fault
        self._matched = 0
        self._random = random.Random(seed)

    def selects(self, method: str, target: str) -> bool:
        """Count a request if it matches this rule; return whether the rule injects its fault into the request."""
        if self.fault.method not in (None, method) or not fnmatchcase(target, self.fault.path):
            return False
        self._matched += 1
        chosen = self._random.random() < self.fault.probability
        return chosen and (not self.fault.nth or self._matched in self.fault.nth)
