# SPDX-License-Identifier: Apache-2.0
"""The protocol of a state store: it stores small durable facts of streams, written once and never changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

OPTION: Final = "stateLocation"
"""The option that errors of these stores name."""


class StateStore(Protocol):
    """Stores facts, which are bytes with a name, below one location. Threads, processes and machines share it.

    All methods raise ConfigurationError if a permission is missing or the store lacks the operation, and RetriableError
    if the store does not answer or is full.

    Attributes:
        location: The directory or URL, as the option gives it.
    """

    location: str

    def get(self, name: str) -> bytes | None:
        """Return the bytes of the fact `name`; None if it does not exist."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a fact unless it exists; return whether this call wrote it.

        At most one of several writers gets True. If the answer to a successful request is lost, its writer gets False
        too: read the fact to see whose is stored.
        """

    def names(self, prefix: str) -> list[str]:
        """Return the sorted names of the facts directly below a prefix that ends in `/`, without deeper levels."""

    def directories(self, prefix: str) -> list[str]:
        """Return the sorted directories directly below a prefix that is empty or ends in `/`; they end in `/` too."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete facts by name; missing ones are ignored."""
