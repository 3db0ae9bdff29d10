# SPDX-License-Identifier: Apache-2.0
"""Random histories of an object type and of the daemons of its location, and a clock for both."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace

from forebay.errors import DataError, ForebayError, RetriableError
from forebay.index import Datasource, IndexDaemon, Limits, ObjectType, Property
from forebay.retry import RetryPolicy
from forebay.table.index.replacement import begin_replacement
from forebay.table.index.runs import recorded

HOUR = 3600.0
LIMITS = Limits(duration=1000, delay=615, edits=7 * HOUR + 5)
"""No sum of the times that pass, so that the fraction of a second that a fact does not keep decides nothing."""
DIRECTORIES = ["/log/", "/edits/", "/runs/", "/alerts/", "/segments/", "/states/"]
DIRECTORIES += ["/pipelines/", "/pipelines/r", "/pipelines/0", "/segments/"]
"""What is closed, and how often: without segments, facts wait."""
ACTIONS = {"commit": 5.0, "misfit": 1, "snapshot": 1, "feed": 1, "edit": 1, "flush": 1, "database": 1, "second": 1}
ACTIONS |= {"begin_replacement": 2, "replace": 1, "drop": 1, "close": 2, "open": 2, "jump": 2, "wait": 3}
ACTIONS |= {"remove": 0.4, "round": 12}
"""What happens, and how often."""
DEFINITION = ObjectType(
    "O",
    {"id": "bigint"},
    [
        Datasource("a", {"name": Property("string", filter=True), "note": Property("string", text=True)}),
        Datasource("b", {"city": Property("string", filter=True)}),
    ],
)


class Clocks:
    """A clock that the search sets: `offset` jumps, `passed` does not."""

    def __init__(self):
        self.begin()

    def begin(self):
        self.passed, self.offset = 0.0, 1_800_000_000.0

    def now(self):
        return self.passed + self.offset

    def monotonic(self):
        return self.passed


class Stepping:
    """A clock of which each look takes seconds."""

    def __init__(self, seconds):
        self._ticks = itertools.count(0, seconds)

    def now(self):
        return 0.0

    def monotonic(self):
        return next(self._ticks)


class Exact(RetryPolicy):
    """Pauses without jitter."""

    def pause(self, failures, random, error=None):
        return min(self.first_pause * self.factor ** (failures - 1), self.max_pause)


class Watcher:
    """A daemon, and when it first saw what is pending."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.begin()

    def begin(self):
        self.serving, self.head = "", 0
        """What served in its first round, and the number of the last fact of its last one."""
        self.believes = True
        """Whether it goes by the times of facts, as it could not read all yet."""
        self.earliest: dict[tuple[str, int], float] = {}
        """When what is pending began at the earliest, for this daemon, by its pipeline, or `edits`, and its number."""
        self.latest: dict[tuple[str, int], float] = {}
        """When it did at the latest: it was seen then, and all could be read."""


class History:
    """What happens below a location: its methods without an underscore, as `ACTIONS` says how often.

    Args:
        new_objects: Makes an object type; the fixture of this name does.
        place: A directory.
        seed: Of all that is drawn.
        clock: The clock of the daemons and of the facts.
        closed: What cannot be read or put: `all`, `read` or `put`, and a part of names of files.
    """

    def __init__(self, new_objects, place, seed, clock, closed):
        self.draw, self.clock, self.closed, self.place = random.Random(seed), clock, closed, place
        self.new_objects = new_objects
        self.once = seed % 4 == 0
        self.texts, self.nodes = itertools.count(), itertools.count()
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        self.error: str | None = None
        self.watchers: list[Watcher] = []
        self.begin()
        self.restart()

    def begin(self):
        """Make the object type, which is not there."""
        store, cache = self.place / "store", self.place / f"cache{next(self.nodes)}"
        self.objects = self.new_objects(store, cache, DEFINITION, types={"a": {"name": "string", "title": "string"}})
        self.objects.frames = {"id", "name", "title", "note", "city", "new"}
        self.index, self.defined = self.objects.index, {"000001": self.objects}
        self.rows: dict[int, str] = {}
        self.failed: dict[str, bool | None] = {}
        self.slow: dict[str, bool | None] = {}
        self.sent: Counter[int] = Counter()
        self.alerts_were_closed = False
        self.put(self.objects, "a", dict.fromkeys(range(3), "1"))
        self.put(self.objects, "b", {1: ""})

    def restart(self):
        """Start a daemon, in the place of another one."""
        search = self

        class Database:
            name = "o"

            def catch_up(self):
                if search.error == "away":
                    raise RetriableError("down")
                with recorded(search.index, "opensearch", "o", search.clock) as run:
                    run.did(since=0)
                    if search.error is not None:
                        raise {"lasting": DataError, "passing": RetriableError, "untyped": KeyError}[search.error]("no")

        daemon = IndexDaemon(
            self.objects.location,
            key_hashes=lambda definition, keys: [self.objects.key_hash(key) for key in keys],
            followers=lambda name: [Database()],
            alerts=[lambda alert: self.sent.update([alert.number])],
            limits=LIMITS,
            retry=Exact(first_pause=300.0, factor=2.0, max_pause=HOUR),
            clock=self.clock,
        )
        self.watchers[:1] = [Watcher(daemon)]

    @contextmanager
    def all_open(self):
        closed, self.closed[:] = [*self.closed], []
        try:
            yield
        finally:
            self.closed[:] = closed

    def put(self, objects, source, texts, kind="update"):
        """Commit rows by a definition: of `a`, texts by keys."""
        last = self.index.log.head()
        column = {"a": "name", "b": "city"}.get(source, "new")
        rows = [{"id": key, column: text or str(next(self.texts))} for key, text in texts.items()]
        if source == "a":
            rows = [row | {"title": row["name"], "note": f"n{next(self.texts)}"} for row in rows]
        try:
            return objects.commit(source, rows, kind, follow=False).number
        finally:
            with self.all_open():
                if source == "a" and self.index.head().number > (last.number if last else 0):
                    self.rows = ({} if kind == "snapshot" else self.rows) | {row["id"]: row["name"] for row in rows}

    def commit_by(self, source, texts, kind="update", by=None, *, fails=False):
        """Commit as a process of its own, which records the run."""
        with self.all_open():
            by = by or self.draw.choice([self.defined[name] for name in self.index.head().pipelines])
        slow, is_listed = self.draw.random() < 0.15, not any("/runs/" in text for _, text in self.closed)
        failed = True
        with suppress(ForebayError), recorded(self.index, "commit", source, Stepping(5000 if slow else 0.1)) as run:
            run.did(since=self.index.head().number)
            if fails:
                raise DataError("a key comes twice")
            run.did(to=self.put(by, source, texts, kind))
            failed = False
        self.failed[source], self.slow[source] = (failed, slow) if is_listed else (None, None)

    def commit(self):
        source = self.draw.choice("aab")
        self.commit_by(source, {self.draw.randrange(4): ""}, fails=self.draw.random() < 0.2)

    def misfit(self):
        self.commit_by("a", {self.draw.randrange(4): "no number"})

    def snapshot(self):
        self.commit_by("a", dict.fromkeys(range(4), ""), "snapshot", self.built())

    def feed(self):
        if self.built() is not None:
            self.commit_by("c", {1: ""}, by=self.built())

    def built(self):
        with self.all_open():
            return self.defined.get(self.index.head().pipelines[-1])

    def edit(self):
        cache = self.place / f"node{next(self.nodes)}"
        with suppress(ForebayError), self.all_open(), self.serves.node(cache=cache) as node:
            node.edit(self.draw.randrange(4), note=str(next(self.texts)))

    def flush(self):
        with suppress(ForebayError):
            self.objects.flush(follow=False)

    @property
    def serves(self):
        return self.defined[self.index.head().serving]

    def begin_replacement(self):
        with self.all_open():
            definition = self.serves.definition
            first, *others = definition.datasources
            name = first.properties["name"]
            what = self.draw.choice(["filter", "column", "int", "more", "less"])
            if what == "filter":
                name = replace(name, filter=not name.filter)
            elif what == "column":
                name = Property("string", column="name" if name.column == "title" else "title")
            elif what == "int":
                name = Property("int")
            others = [each for each in others if each.name != {"more": "c", "less": "b"}.get(what)]
            others += [Datasource("c", {"pc": Property("string", column="new")})] * (what == "more")
            properties = {**first.properties, "name": name}
            definition = replace(definition, datasources=[replace(first, properties=properties), *others])
            if definition == self.serves.definition:
                return
            new, swap = self.objects.defined(definition), self.draw.random() < 0.5
            new.frames = self.objects.frames
            head = begin_replacement(self.index, definition, self.index.head().serving, swap=swap)
            self.defined[head.pipelines[-1]] = self.defined.get(head.pipelines[-1], new)
            self.trace.append(f"{what}, swap={swap}: {head.pipelines[-1]}")

    def replace(self):
        """As `Funnel.replace` goes on, perhaps while directories are closed."""
        if self.built() is not None and self.built() is not self.objects:
            with suppress(ForebayError, AssertionError):  # of `Objects`: it serves, or is refused
                self.built().replace(swap=self.draw.random() < 0.5)

    def drop(self):
        with self.all_open():
            begin_replacement(self.index, None, self.index.head().serving)

    def close(self):
        for _ in range(self.draw.choice([1, 1, 2, 3])):
            self.closed.append((self.draw.choice(["all", "all", "put", "read"]), self.draw.choice(DIRECTORIES)))
        self.alerts_were_closed |= any("/alerts/" in text for _, text in self.closed)
        self.trace.append(f"closed: {self.closed}")

    def open(self):
        self.draw.shuffle(self.closed)
        self.closed[:] = [] if self.draw.random() < 0.6 else self.closed[1:]
        self.trace.append(f"closed: {self.closed}")

    def database(self):
        self.error = self.draw.choice([None, "lasting", "passing", "untyped", "away"])

    def jump(self):
        self.clock.offset += self.draw.choice([86_400.0, -86_400.0, 7200.0, -600.0])

    def wait(self):
        self.clock.passed += self.draw.choice([30.0, 300.0, 700.0, 4000.0, 8 * HOUR])

    def second(self):
        if len(self.watchers) < 2:
            self.restart()
            self.watchers.append(self.watchers[0])
            self.restart()
