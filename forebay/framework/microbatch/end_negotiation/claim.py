# SPDX-License-Identifier: Apache-2.0
"""Claims: small files that fix how far a micro-batch reads a split whose end is unknown before it is read (S14).

A task reads such a split in chunks. Each attempt of the task claims the end of a chunk before it delivers any row of
it; the first attempt wins. The claims of a split in a micro-batch, numbered from 0, are a chain, which ends with a
claim that is `last`. Files below `stateLocation`:

```
<query id>/claims/<n>/<split>.<digest>.<k>      claim k: {"end": position, "last": bool, "caughtUp": bool}
<query id>/claims/<n>/begun                     marks that the claims of micro-batch n are in this directory
```
The digest covers the split's id and the position where the micro-batch begins. So a query that is set back to an
earlier offset and plans differently gets new chains.
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
    """What a task needs to negotiate ends: query id, number of the micro-batch, limits by split id. Picklable."""

    query: str
    n: int
    limits: Mapping[str, Limits] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """The end of one chunk of a split. Every attempt of the task reads the chunk to this end.

    Args:
        end: The position after the chunk; None if the split is still at its start.
        last: Whether this is the last chunk of the split in the micro-batch.
        caught_up: Whether it is the last one because the split had no more data.
    """

    end: Position | None
    last: bool = False
    caught_up: bool = False

    def dump(self) -> bytes:
        """Return the content of the claim's file, as JSON."""
        return json.dumps({"end": self.end, "last": self.last, "caughtUp": self.caught_up}).encode()


class ClaimChain:
    """The claims of one split in micro-batch `n` of a query. For planners and tasks, on any thread.

    The position of `split` is where the micro-batch begins.
    """

    def __init__(self, store: StateStore, calls: ConnectorCalls, query: str, n: int, split: Split) -> None:
        self._store = store
        self._calls = calls
        self._split = split
        self._stem = f"{claims_of(query, n)}{_component(split)}."

    def newest(self, after: int = -1) -> tuple[int, Claim] | None:
        """Return the number of the newest claim, and the claim itself; None if no claim has a number above `after`.

        A chain has no gaps, so the search doubles its steps until it finds no claim, and then halves them.
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
        """Write claim number `k` unless another attempt of the task has written it; return the claim that is stored."""
        data = claim.dump()
        if self._calls.call("writing claims (stateLocation)", lambda: self._store.put_if_absent(self._name(k), data)):
            return claim
        winner = self._read(k)
        if winner is None:
            raise FatalError(
                f"the file {self._name(k)} below {self._store.location} was deleted while the micro-batch was read",
                split=self._split.id,
                option="stateLocation",
                advice="restart the query, and delete nothing below stateLocation while it runs",
            )
        return winner

    def seal(self) -> Claim:
        """Return the claim that is `last`. If there is none, first write one with the end of the newest claim.

        Called by planners for a committed micro-batch, whose rows are all delivered.
        """
        while True:
            found = self.newest()
            if found is not None and found[1].last:
                return found[1]
            k, end = (0, self._split.position) if found is None else (found[0] + 1, found[1].end)
            winner = self.propose(k, Claim(end, last=True))
            if winner.last:
                return winner

    def _read(self, k: int) -> Claim | None:
        data = self._calls.call("reading claims (stateLocation)", lambda: self._store.get(self._name(k)))
        if data is None:
            return None
        try:
            stored = json.loads(data)
            end = stored["end"]
            position = None if end is None else normalise(end, self._split.id)
            return Claim(position, last=stored["last"] is True, caught_up=stored["caughtUp"] is True)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"the file {self._name(k)} below {self._store.location} is damaged: {type(error).__name__}: {error}",
                split=self._split.id,
                option="stateLocation",
                advice="restore the file from a backup: the end of this split in this micro-batch is only stored there",
            ) from error

    def _name(self, k: int) -> str:
        return f"{self._stem}{k:06d}"


def claims_of(query: str, n: int) -> str:
    """Return the prefix that the names of all claims of micro-batch `n` have."""
    return f"{query}/claims/{n}/"


def begun_of(query: str, n: int) -> str:
    """Return the name of the marker file of micro-batch `n`. It is written before the claims, beside them."""
    return f"{claims_of(query, n)}begun"


def _component(split: Split) -> str:
    digest = hashlib.sha256(json.dumps([split.id, split.position]).encode()).hexdigest()[:16]
    shown = quote(split.id, safe="", errors="replace")[:_SHOWN]
    return f"{'%2E' + shown[1:] if shown.startswith('.') else shown}.{digest}"  # a leading dot hides a file
