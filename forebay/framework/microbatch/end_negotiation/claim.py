# SPDX-License-Identifier: Apache-2.0
"""Claims: the negotiated ends of a split in one micro-batch (S14).

Every attempt of a task claims the end of a chunk before it delivers any row of it. The claims of one split in one
micro-batch are a chain, which ends with a claim that is `last`. Below `stateLocation`:

``` <query>/claims/<n>/<split>.<digest>.<k>      {"end": position, "last": bool, "caughtUp": bool}
<query>/claims/<n>/begun                     marks that the claims of this micro-batch are here ``` The digest covers
the split's id and the position where the micro-batch begins. So a query that is reset and plans differently has other
chains.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from forebay.errors import ConfigurationError, FatalError
from forebay.framework.microbatch.admission.admission import Limits
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.split import Position, Split, normalise
from forebay.state.state_store import StateStore

_SHOWN: Final = 48
"""Maximum characters of a split's id in a file name, for people; the digest makes the name unique."""


@dataclass(frozen=True)
class Negotiation:
    """The part of a task that negotiates ends: query id, number of the micro-batch, limits by split id. Picklable."""

    query: str
    n: int
    limits: Mapping[str, Limits] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """The end of one chunk, the same for every attempt.

    Args:
        end: Exclusive; None at the start of a split.
        last: Whether the micro-batch ends here.
        caught_up: Whether it ends here because there was no more data.
    """

    end: Position | None
    last: bool = False
    caught_up: bool = False

    def dump(self) -> bytes:
        """Return the stored form."""
        return json.dumps({"end": self.end, "last": self.last, "caughtUp": self.caught_up}).encode()


class ClaimChain:
    """The claims of one split, at the position where micro-batch `n` begins. For planners and tasks, on any thread."""

    def __init__(self, store: StateStore, calls: ConnectorCalls, query: str, n: int, split: Split) -> None:
        self._store = store
        self._calls = calls
        self._split = split
        self._stem = f"{claims_of(query, n)}{_component(split)}."

    def newest(self, after: int = -1) -> tuple[int, Claim] | None:
        """Return the newest claim and its number; None if there is none after the given number.

        A chain has no gaps, so its end is found by doubling and then halving steps.
        """
        found, step, doubling = None, 1, True
        while step:
            claim = self._read(after + step)
            if claim is not None:
                after += step
                found = (after, claim)
                if claim.last:
                    return found
            doubling = doubling and claim is not None
            step = step * 2 if doubling else step // 2
        return found

    def propose(self, k: int, claim: Claim) -> Claim:
        """Write claim number k, unless another attempt was first; return the claim that holds."""
        data = claim.dump()
        if self._calls.call("claiming", lambda: self._store.put_if_absent(self._name(k), data)):
            return claim
        winner = self._read(k)
        if winner is None:
            raise FatalError(
                f"claim {k} disappeared while the micro-batch was read: {self._name(k)} in {self._store.location}",
                split=self._split.id,
                option="stateLocation",
                advice="restart the query, and delete nothing there while it runs",
            )
        return winner

    def seal(self) -> Claim:
        """Return the last claim, written now if there is none. Called by planners for a committed micro-batch."""
        while True:
            found = self.newest()
            if found is not None and found[1].last:
                return found[1]
            k, end = (0, self._split.position) if found is None else (found[0] + 1, found[1].end)
            winner = self.propose(k, Claim(end, last=True))
            if winner.last:
                return winner

    def _read(self, k: int) -> Claim | None:
        data = self._calls.call("reading a claim", lambda: self._store.get(self._name(k)))
        if data is None:
            return None
        try:
            stored = json.loads(data)
            end = stored["end"]
            position = None if end is None else normalise(end, self._split.id)
            return Claim(position, last=stored["last"] is True, caught_up=stored["caughtUp"] is True)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"claim {k} is damaged: {type(error).__name__}: {error}; {self._name(k)} in {self._store.location}",
                split=self._split.id,
                option="stateLocation",
                advice="restore the file: only it has the end of the split",
            ) from error

    def _name(self, k: int) -> str:
        return f"{self._stem}{k:06d}"


def claims_of(query: str, n: int) -> str:
    """Return the prefix of the names of all claims of a micro-batch."""
    return f"{query}/claims/{n}/"


def begun_of(query: str, n: int) -> str:
    """Return the name of the mark that the claims of a micro-batch are here, written before any claim."""
    return f"{claims_of(query, n)}begun"


def _component(split: Split) -> str:
    digest = hashlib.sha256(json.dumps([split.id, split.position]).encode()).hexdigest()[:16]
    shown = quote(split.id, safe="")[:_SHOWN]
    return f"{'%2E' + shown[1:] if shown.startswith('.') else shown}.{digest}"  # a leading dot hides a file
