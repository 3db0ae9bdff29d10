# SPDX-License-Identifier: Apache-2.0
"""The protocol of a state store: small durable facts of streams, written once and never changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

OPTION: Final = "stateLocation"
"""The option that errors of these stores name."""


class StateStore(Protocol):
    """Named facts below one location, shared by threads, processes and machines.

    All methods raise ConfigurationError if a permission is missing or the store lacks the operation, and RetriableError
    if the store does not answer or is full.

    Attributes:
        location: The directory or URL of the option.
    """

    location: str

    def get(self, name: str) -> bytes | None:
        """Return the fact of this name; None if there is none."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a fact unless it exists; return whether this call wrote it.

        At most one of several writers gets True. If the answer to a successful request is lost, that writer gets False
        too: read the fact to see who won.
        """

    def names(self, prefix: str) -> list[str]:
        """Return the sorted names directly below a prefix that ends in `/`, without those of deeper levels."""

    def directories(self, prefix: str) -> list[str]:
        """Return the sorted directories directly below a prefix that is empty or ends in `/`; they end in `/` too."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete facts; missing ones are ignored."""
