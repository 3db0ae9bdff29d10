# SPDX-License-Identifier: Apache-2.0
"""Claims: how far a micro-batch reads a split whose end nobody knew when it was planned (S14).

Every attempt of a task, of any action, agrees on the end of a chunk before a row of it leaves. The claims of one split
in one micro-batch are a chain; the last one says so. Below `stateLocation`:

```
<query>/claims/<n>/<split>.<digest>.<k>      {"end": position, "last": bool, "caughtUp": bool}
<query>/claims/<n>/begun                     the claims of this micro-batch are kept here
```
The digest is of the split's id and of the position where the micro-batch begins: a query that is set back, and then
reads in other portions, has chains of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from forebay.errors import ConfigurationError, FatalError
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.split import Position, Split, normalise
from forebay.state.state_store import StateStore

_SHOWN: Final = 48
"""Characters of a split's id in a name, for who looks at the directory; the digest tells them apart."""


@dataclass(frozen=True, slots=True)
class Share:
    """The most that a micro-batch takes of one split; None = no limit."""

    rows: int | None = None
    byte_budget: int | None = None


@dataclass(frozen=True)
class Claiming:
    """What a task needs to claim ends. Picklable.

    Args:
        query: The id of the query.
        n: The number of the micro-batch.
        shares: By split id, for every split whose end is to be agreed on.
    """

    query: str
    n: int
    shares: Mapping[str, Share] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """The end of one chunk, which every attempt keeps to.

    Args:
        end: Exclusive; None at the very start of a split.
        last: The micro-batch reads no further.
        caught_up: And that because there was nothing more for now.
    """

    end: Position | None
    last: bool = False
    caught_up: bool = False

    def dump(self) -> bytes:
        """Return it as it is stored."""
        return json.dumps({"end": self.end, "last": self.last, "caughtUp": self.caught_up}).encode()


class Chain:
    """The claims of one split in one micro-batch. Called by planners and tasks, on any thread.

    Args:
        store: Where claims are kept.
        calls: Bounds and retries the calls of the store.
        query: The id of the query.
        n: The number of the micro-batch.
        split: At the position where the micro-batch begins.
    """

    def __init__(self, store: StateStore, calls: ConnectorCalls, query: str, n: int, split: Split) -> None:
        self._store = store
        self._calls = calls
        self._split = split
        self._stem = f"{claims_of(query, n)}{_component(split)}."

    def newest(self, after: int = -1) -> tuple[int, Claim] | None:
        """Return the newest claim and its number; None if there is none after a certain number.

        There is no gap in a chain, so some looks find its end: doubling the steps while there is something, and then
        halving them.
        """
        found, step, doubling = None, 1, True
        while step:
            claim = self._look(after + step)
            if claim is not None:
                after += step
                found = (after, claim)
                if claim.last:
                    return found
            doubling = doubling and claim is not None
            step = step * 2 if doubling else step // 2
        return found

    def propose(self, k: int, claim: Claim) -> Claim:
        """Put claim number k, unless another attempt was first; return the one that holds."""
        data = claim.dump()
        if self._calls.call("claiming", lambda: self._store.put_if_absent(self._name(k), data)):
            return claim
        return self._get(k)

    def seal(self) -> Claim:
        """Return the last claim, put now if there is none. Called by planners, once the micro-batch is done."""
        while True:
            found = self.newest()
            if found is not None and found[1].last:
                return found[1]
            k, end = (0, self._split.position) if found is None else (found[0] + 1, found[1].end)
            winner = self.propose(k, Claim(end, last=True))
            if winner.last:
                return winner

    def _get(self, k: int) -> Claim:
        claim = self._look(k)
        if claim is None:
            raise FatalError(
                f"claim {k} is gone while the micro-batch is read: {self._name(k)} in {self._store.location}",
                split=self._split.id,
                option="stateLocation",
                advice="delete nothing there while the query runs; restart the query",
            )
        return claim

    def _look(self, k: int) -> Claim | None:
        data = self._calls.call("reading a claim", lambda: self._store.get(self._name(k)))
        if data is None:
            return None
        try:
            found = json.loads(data)
            end = found["end"]
            position = None if end is None else normalise(end, self._split.id)
            return Claim(position, last=found["last"] is True, caught_up=found["caughtUp"] is True)
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"claim {k} cannot be read: {type(error).__name__}: {error}") from error

    def _name(self, k: int) -> str:
        return f"{self._stem}{k:06d}"

    def _damaged(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"what the stream remembers is damaged: {what}, {self._stem}* in {self._store.location}",
            split=self._split.id,
            option="stateLocation",
            advice="put the files back as they were; without them nobody knows how far the split was read",
        )


def claims_of(query: str, n: int) -> str:
    """Return what the names of all claims of a micro-batch begin with."""
    return f"{query}/claims/{n}/"


def begun_of(query: str, n: int) -> str:
    """Return the name of the note that the claims of a micro-batch are kept here, written before there are any."""
    return f"{claims_of(query, n)}begun"


def _component(split: Split) -> str:
    digest = hashlib.sha256(json.dumps([split.id, split.position]).encode()).hexdigest()[:16]
    shown = quote(split.id, safe="")[:_SHOWN]
    return f"{'%2E' + shown[1:] if shown.startswith('.') else shown}.{digest}"  # a dot in front hides a file
