# SPDX-License-Identifier: Apache-2.0
"""How an offset is written down and read back: all of it inside, or partly where `stateLocation` says."""

from __future__ import annotations

import logging
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from forebay.errors import ConfigurationError
from forebay.framework.digests import SplitDigests
from forebay.framework.microbatch.offsets.compact import compact, expand, length
from forebay.framework.microbatch.offsets.finished_splits import DoneSplits
from forebay.framework.microbatch.offsets.offset import (
    DIGESTS,
    Offset,
    Planned,
    canonical,
    check_head,
    damaged,
    dump_offset,
    dump_planned,
    load_offset,
)
from forebay.framework.source import Source
from forebay.framework.split import Json

_log = logging.getLogger(__name__)

MOST_INLINE: Final = 64 << 10
"""Characters of what an offset remembers of splits that ended, at most: Spark writes it with every micro-batch."""

MOST_OFFSET: Final = 96 << 10
"""Characters of an offset without digests, at most: an idle query polls it up to 90 times a second."""

MOST_DIGESTS: Final = 6 << 20
"""Characters of the digests in an offset, at most: Spark's driver keeps about 120 of the last offsets in memory."""

_MOST_WHOLE: Final = 16 << 10
"""Characters of the splits that ended which are kept whole, where digests can take their place."""

_IDLE: Final = 2_000_000
"""Characters of digests that an idle stream sends to and fro in a second, at most."""

_MOST_PLAN: Final = 24 << 10
"""Characters that the splits of one micro-batch take in its offset, at most, where their number is free."""

_GUESS: Final = 400
"""Splits of which nothing is known that a micro-batch may take."""

_STEP: Final = 16
_GROWS: Final = 1.25
"""What base 85 makes of compressed bytes."""


class OffsetCodec(ABC):
    """Writes and reads the offsets of one query. Called on the planning thread."""

    @abstractmethod
    def write(self, offset: Offset, done: DoneSplits) -> dict[str, Json]:
        """Return the offset as Spark is to log it. May block.

        Raises:
            ConfigurationError: There is more to remember than there is room.
            RetriableError: A store did not answer.
        """

    @abstractmethod
    def read(self, data: Any) -> Offset:  # noqa: ANN401 - any JSON value, of whatever checkpoint
        """Return the offset, with its plan complete. May block.

        Raises:
            ConfigurationError: It is of another source, of a newer release, or damaged.
        """

    @abstractmethod
    def read_done(self, data: Any) -> DoneSplits:  # noqa: ANN401 - as above
        """Return what is remembered of splits that ended before this micro-batch. May block."""

    def room(self, there: Sequence[Planned] = ()) -> int | None:
        """Return how many splits a micro-batch may take so that they can be remembered; None = any number.

        Args:
            there: What it could take, in order; the answer counts from the first one on. Empty where that is not known
                yet: then the answer is a guess.
        """
        return None

    def patience(self) -> float:
        """Return how many seconds a call may wait before it reports nothing new, so that fewer calls are made."""
        return 0.0

    def proven(self, offset: Offset) -> None:
        """A micro-batch is done, and older ones are needed no more than for going back a little. Best effort."""


class InlineOffsetCodec(OffsetCodec):
    """Everything is in the offset; what does not fit there is refused, before anything could be missed (S15).

    A refused offset is not written: the one before it stands, and a `SpillingOffsetCodec` goes on from there.

    Args:
        source: What is read.
        digests: Recognises splits that ended, where the enumerator can do with that.
    """

    def __init__(self, source: Source, digests: SplitDigests | None = None) -> None:
        self._source = source
        self._digests = digests
        self._warned = False
        self._guess = _GUESS

    def write(self, offset: Offset, done: DoneSplits) -> dict[str, Json]:
        """Return the offset, long lists compressed."""
        data = dump_offset(offset)
        data["splits"] = compact(data["splits"])
        if offset.splits:
            self._guess = max(1, _MOST_PLAN * len(offset.splits) // max(1, length(data["splits"])))
        whole = compact(done.entries())
        if self._digests is not None and length(whole) > _MOST_WHOLE:
            done.condense()
            whole = compact(done.entries())
        if done:
            data["done"] = whole
            self._check(f"the {len(done)} splits that were read", length(whole), MOST_INLINE)
        self._check(f"the offset with {len(offset.splits)} splits to read", length(data), MOST_OFFSET)
        return dict(sorted((data | self._condensed(done)).items()))

    def read(self, data: Any) -> Offset:  # noqa: ANN401 - as in the base class
        """Return the offset."""
        if isinstance(data, dict) and isinstance(data.get("state"), dict):
            raise ConfigurationError(
                "this query keeps its state in stateLocation, and none is given",
                source=self._source.name,
                option="stateLocation",
                advice=f"give stateLocation as before: {data['state'].get('at', 'the same directory')}",
            )
        return load_offset(expanded(data, self._source.name), self._source.name, self._source.split_class)

    def read_done(self, data: Any) -> DoneSplits:  # noqa: ANN401 - as in the base class
        """Return what the offset remembers."""
        return loaded_done(expanded(data, self._source.name), self._source, self._digests)

    def room(self, there: Sequence[Planned] = ()) -> int:
        """Return as many splits as fit beside one another in an offset, measured; one always does."""
        if not there:
            return self._guess
        packer, taken, size, rest = zlib.compressobj(), 0, 0, iter(there)
        while chunk := list(islice(rest, _STEP)):
            text = canonical([dump_planned(planned) for planned in chunk])
            size += len(packer.compress(text.encode())) + len(packer.flush(zlib.Z_SYNC_FLUSH))
            if size * _GROWS > _MOST_PLAN:
                break
            taken += len(chunk)
        return max(1, taken)

    def patience(self) -> float:
        """Return what keeps the cost of long offsets, which Spark sends and receives in each call, at some percents."""
        return 0.0 if self._digests is None else self._digests.characters / _IDLE

    def _condensed(self, done: DoneSplits) -> dict[str, Json]:
        """Return what an offset says of splits that were condensed; nothing if none was."""
        if not done.digests:
            return {}
        self._check(f"the {done.count} splits that were read", done.digests.characters, MOST_DIGESTS)
        return {"v": DIGESTS, "digests": done.digests.dump()}

    def _check(self, what: str, size: int, most: int) -> None:
        """Refuse what does not fit, and warn once at half of it."""
        if size > most:
            raise ConfigurationError(
                f"{what} cannot be remembered: that takes {size} characters in each offset, and {most} is the most",
                source=self._source.name,
                option="stateLocation",
                advice="give stateLocation, a directory for what the stream remembers, and restart: nothing is lost, "
                "and nothing is read twice",
            )
        if size > most // 2 and not self._warned:
            self._warned = True
            _log.warning(
                "%s: %s: that takes %d characters in each offset, half of what fits; give stateLocation in time",
                self._source.name,
                what,
                size,
            )


def expanded(data: Any, source: str) -> dict[str, Any]:  # noqa: ANN401 - any JSON value, of whatever checkpoint
    """Return an offset's JSON with its long lists expanded.

    Raises:
        ConfigurationError: It is not ours, or a list in it is damaged.
    """
    head = check_head(data, source)
    try:
        return {name: expand(value) if name in ("splits", "done") else value for name, value in head.items()}
    except ValueError as error:
        raise damaged(source, str(error)) from error


def loaded_done(found: Mapping[str, Any], source: Source, digests: SplitDigests | None) -> DoneSplits:
    """Return what an expanded offset remembers of splits that ended.

    Raises:
        ConfigurationError: It is damaged.
    """
    done = DoneSplits(source.split_class, checked_done(found.get("done", []), source.name), digests)
    try:
        done.digests.load(found.get("digests", []))
    except (TypeError, ValueError) as error:
        raise damaged(source.name, str(error)) from error
    return done


def checked_done(entries: Any, source: str) -> list[list[Any]]:  # noqa: ANN401 - any JSON value
    """Return the entries of `DoneSplits` if they are such.

    Raises:
        ConfigurationError: They are not: taken for empty, everything would be read again.
    """
    whole = isinstance(entries, list) and all(
        isinstance(entry, list)
        and 1 <= len(entry) <= 2
        and isinstance(entry[0], str)
        and (len(entry) == 1 or isinstance(entry[1], dict))
        for entry in entries
    )
    if not whole:
        raise damaged(source, "what it remembers of splits that ended is no list of them")
    found: list[list[Any]] = entries
    return found
