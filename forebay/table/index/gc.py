# SPDX-License-Identifier: Apache-2.0
"""Collects what nothing needs any more: old facts, and files that no fact names.

Kept is what the last facts of the log name, those that a follower has not seen, and the last versions of each pipeline.
Kept are edits of users that a pipeline does not contain. A pipeline that was dropped or replaced goes as a whole.
Files of attempts that may still commit are kept too: the number of the fact on which an attempt is based is part of
their names. No clock decides anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from forebay.table.index.definition import refused
from forebay.table.index.log import KEPT, Entry
from forebay.table.index.monitor import old_alerts
from forebay.table.index.pipelines import IndexStore, IndexVersion

VERSIONS: Final = 10
"""Versions of a pipeline that are kept."""

_BASE = re.compile(r"([0-9]{12})-")


@dataclass(frozen=True)
class Collected:
    """What was collected, or would be.

    Args:
        facts: Facts of the log, versions of pipelines, and edits of users.
        files: Files of states and segments.
    """

    facts: tuple[str, ...]
    files: tuple[str, ...]


def collect(index: IndexStore, *, keep: int = KEPT, versions: int = VERSIONS, dry_run: bool = False) -> Collected:
    """Remove what nothing needs any more. Writers, followers and nodes may go on meanwhile.

    Args:
        index: The store.
        keep: Facts of the log to keep, at least the last two.
        versions: Versions of each pipeline to keep.
        dry_run: Only return what would be removed.

    Raises:
        ConfigurationError: `keep` or `versions` is less than 1, or there is no such object type.
    """
    for name, number in (("keep", keep), ("versions", versions)):
        if not isinstance(number, int) or number < 1:
            raise refused(name, number, "give 1 or more")
    pipelines = index.pipelines()
    head = index.head()  # a pipeline is part of the log before it has files
    followers = list(index.followed(head))
    # A writer that has put the newest fact looks for the one before it: without it, the fact would not count.
    first = min([head.number - max(keep, 2) + 1, *(newest.data for newest in followers if newest.data >= 0)])
    facts = [index.log.name(number) for number in index.log.numbers() if number < first]
    for newest in followers:
        old = [number for number in index.versions(newest.pipeline) if 0 < number <= newest.number - versions]
        facts += [index.version_name(newest.pipeline, number) for number in old]
    # Nodes read edits until a version contains them.
    edits = min((min(newest.edits, head.edits.offset) for newest in followers if newest.number > 0), default=0)
    # The number in the log that the swap of a dropped replacement needs is taken: it never serves.
    prefixes = [index.pipeline_prefix(name) for name in pipelines if name not in head.pipelines]
    dropped = [name for each in prefixes for inside in ("", "segments/") for name in index.store.names(each + inside)]
    facts += [index.edits.name(offset) for offset in index.edits.offsets() if offset <= edits]
    facts += old_alerts(index)
    # Facts that others put from now on name files of these ones, or of attempts that are not so old. Of those before,
    # another collector may remove some while they are read.
    named = {*files_of(head), *(segment.name for newest in followers for segment in newest.segments)}
    named.update(_named(index, first, followers, versions))
    files = [
        name
        for directory in index.store.directories(f"{index.directory}states/")
        for name in _unnamed(index, directory, named, head.number - max(keep, KEPT))
    ]
    for newest in followers:
        base = min(newest.data, head.number)  # a copy may have a version that is ahead of its log
        files += _unnamed(index, f"{index.pipeline_prefix(newest.pipeline)}segments/", named, base)
    files += [name for name in dropped if not name.endswith(".json")]
    facts += sorted(name for name in dropped if name.endswith(".json"))
    if not dry_run:
        # In ascending order, one after the other: whoever finds a number free also finds the one before it free.
        for name in facts:
            index.store.delete([name])
        index.store.delete(files)
    return Collected(tuple(facts), tuple(files))


def _named(index: IndexStore, first: int, followers: Iterable[IndexVersion], versions: int) -> Iterator[str]:
    """Yield the names of all files that kept facts name."""
    for number in index.log.numbers():
        entry = index.log.get(number) if number >= first else None
        if entry is not None:
            yield from files_of(entry)
    for newest in followers:
        for number in index.versions(newest.pipeline):
            version = index.version(newest.pipeline, number) if number > newest.number - versions else None
            if version is not None:
                yield from (segment.name for segment in version.segments)


def files_of(entry: Entry) -> Iterator[str]:
    """Yield the names of the files that a fact of the log names."""
    runs = [run for state in entry.states.values() for shard in state.shards for run in shard]
    for run in (*runs, *entry.changes):
        yield from (segment.name for segment in run)


def _unnamed(index: IndexStore, directory: str, named: set[str], base: int) -> list[str]:
    """Return the files of a directory that nothing names, of attempts based on facts before `base`."""
    found = ((name, _BASE.match(name.removeprefix(directory))) for name in index.store.names(directory))
    return [name for name, match in found if match is not None and int(match[1]) < base and name not in named]
