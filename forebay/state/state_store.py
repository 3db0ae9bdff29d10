# SPDX-License-Identifier: Apache-2.0
"""Small durable facts of streams, in a directory: written once, by whoever is first, and never changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

OPTION: Final = "stateLocation"
"""The option that errors of these stores name."""


class StateStore(Protocol):
    """Named facts below one location. Any thread, any number of processes and machines at once.

    Attributes:
        location: The directory or URL, as the user gave it.
    """

    location: str

    def get(self, name: str) -> bytes | None:
        """Return the fact of this name; None if there is none.

        Raises:
            ConfigurationError: No permission.
            RetriableError: The store did not answer.
        """

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a fact, unless there is one of this name; of several writers at most one is told that it won.

        A writer whose first try was taken, but whose answer was lost on the way, is told that it did not: who has to
        know reads back what stands.

        Returns:
            Whether this call wrote it.

        Raises:
            ConfigurationError: No permission, or the store cannot do it.
            RetriableError: The store did not answer, or is full.
        """

    def names(self, prefix: str) -> list[str]:
        """Return the names directly below a prefix which ends in `/`, sorted; not those below another `/`.

        Raises:
            ConfigurationError: No permission.
            RetriableError: The store did not answer.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Delete facts; those that are gone already do not matter.

        Raises:
            ConfigurationError: No permission.
            RetriableError: The store did not answer.
        """
