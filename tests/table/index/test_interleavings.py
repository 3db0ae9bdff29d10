# SPDX-License-Identifier: Apache-2.0
"""Every order in which processes can call the store: real code, run again from the answers that it was given.

A process may pause for any length before each of its calls, or never go on. Others go on meanwhile, and collect.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import textwrap
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.errors import ForebayError
from forebay.index import Datasource, ObjectType, Property
from forebay.table.index import facts as facts_module
from forebay.table.index import follower as follower_module
from forebay.table.index import gc as collection
from forebay.table.index import log as log_module
from forebay.table.index import pipelines as pipelines_module
from forebay.table.index.edits import EditLog
from forebay.table.index.follower import Follower, FullRule, segments_prefix
from forebay.table.index.log import DatasourceState, Entry, Log
from forebay.table.index.pipelines import IndexStore, IndexVersion
from forebay.table.index.segments import IndexSegment

OBJECT = ObjectType("O", {"id": "bigint"}, [Datasource("a", {"x": Property("string")}), Datasource("b", {})])
KEPT, PIPELINE, TIME = 3, "000001", "2026-01-01T00:00:00+00:00"
SILENT = ("O/runs/", "O/alerts/", "O/edits/", "O/states/")


class NextCall(BaseException):
    """A process came to a call whose answer is not known yet."""


class Process:
    """A process that has got some answers of the store. It is one itself, and answers again what it was answered."""

    location = "/"
    running: Any = None

    def __init__(self, name: str, program: Any, answers: Any) -> None:
        self.name, self.answers, self.ended, self.ids = name, answers, list[Any](), itertools.count()
        self.call: Any = None
        self.given, self.begins, self.base = 0, False, b""
        self.index: Any = object.__new__(IndexStore)
        self.index.location, self.index.storage, self.index.object_type, self.index.directory = "/", {}, "O", "O/"
        store: Any = self
        self.index.store, self.index.edits, self.index.log = store, EditLog(store, "O/"), BasedLog(store, "O/")
        Process.running = self
        with suppress(NextCall):
            program(self)

    def answer(self, kind, name, data=None):
        if name.startswith(SILENT):
            return {"get": None, "put": True, "delete": None}.get(kind, ())
        if self.given == len(self.answers):
            self.call = kind, name, data, self.base, self.begins
            raise NextCall
        self.given, self.begins, self.ended = self.given + 1, False, []
        return self.answers[self.given - 1]

    def does(self, kind, action):
        """Do something of which the search checks the result, between whose first and last call it has to be true."""
        self.begins = True
        try:
            result = action()
        except ForebayError as error:
            kind, result = f"{kind} failed", error
        self.ended.append((kind, result))
        return result

    get = functools.partialmethod(answer, "get")
    put_if_absent = functools.partialmethod(answer, "put")
    names = functools.partialmethod(answer, "names")
    directories = functools.partialmethod(answer, "directories")

    def delete(self, names):
        for name in names:
            self.answer("delete", name)


def append(source="a", count=1, changed=1):
    def change(base, head, known):
        before = base.states.get(source)
        applied = (*(before.applied if before else ()), (known, ""))
        state = DatasourceState("", ((),), 1, head.number + 1, applied=applied)
        of_source = {"datasource": source, "counts": {"updated": changed}, "before": 100, "time": TIME}
        return replace(head, kind="transaction", states={**head.states, source: state}, **of_source)

    def program(process):
        for _ in range(count):
            base = process.does("head", process.index.head)
            known = uuid.uuid4().hex
            make = functools.partial(change, base, known=known)
            process.does("append", functools.partial(process.index.log.append, base, make, source))

    return program


def follow(**how):
    return lambda process: process.does(
        "version", lambda: Written(process.index, PIPELINE, FullRule(None)).follow(**how)
    )


def collects(process):
    process.does("collect", lambda: collection.collect(process.index, keep=1, versions=1))


def head(process):
    return process.does("head", process.index.head)


def heads(process):
    known = head(process)
    process.does("head", lambda: process.index.log.head(known))


def versions(process):
    known = process.does("version", lambda: process.index.newest_version(PIPELINE))
    process.does("version", lambda: process.index.newest_version(PIPELINE, known))


def then(*programs):
    return lambda process: [program(process) for program in programs]


LATER = then(*[append("b"), follow()] * 3, collects)
"""All at once: so much that facts and versions go that a paused process knows."""


class BasedLog(Log):
    """A log of a process that says on which fact the one is based that it puts."""

    def put(self, entry, head, is_in):
        Process.running.base = head.to_bytes()
        return super().put(entry, head, is_in)


class Written(Follower):
    """A follower that writes a segment without rows."""

    def _written(self, head, *_):
        name = f"{segments_prefix(self._index, self._pipeline, head.number)}{uuid.uuid4().hex}"
        self._index.store.put_if_absent(name, b"")
        return (IndexSegment(name, 1, "", 1, 0, None, 0, 1),), 0

    def _step(self, last, head, **how):
        made = super()._step(last, head, **how)
        Process.running.base = last.to_bytes()
        return made


@dataclass(frozen=True)
class State:
    """The files, the answers of each process, and all facts and versions that ever were the newest, in order.

    Of each process there is how many facts and versions there were when it began what it does.
    """

    files: frozenset
    answers: tuple
    log: tuple
    versions: tuple
    began: tuple

    def __hash__(self):
        return hash((self.files, self.answers, self.began))


class Fault(AssertionError):
    """A promise is broken."""


class Search:
    """All orders of calls with few switches away from a process amid what it does. Those called `later` have none."""

    def __init__(self, state, **programs):
        self.programs, self.states = list(programs.items()), 0
        self.process = functools.lru_cache(None)(lambda at, answers: Process(*self.programs[at], answers))
        begins = len(state.log), len(state.versions)
        self.first = replace(state, answers=((),) * len(programs), began=(begins,) * len(programs))

    def run(self, switches=2):
        level: list[Any] = [(self.first, None)]
        seen: set[Any] = set(level)
        for switched in range(switches + 1):
            after: list[Any] = []
            for state, last in level:
                self.states += 1
                amid = last is not None and (call := self.process(last, state.answers[last]).call) and not call[-1]
                for at in range(len(self.programs)):
                    if self.process(at, state.answers[at]).call is None or (
                        amid and at != last and switched == switches
                    ):
                        continue
                    found = (
                        (self.all_of(state, at) if self.programs[at][0].startswith("later") else self.after(state, at)),
                        at,
                    )
                    if found not in seen:
                        seen.add(found)
                        (after if amid and at != last else level).append(found)
            level = after
        return [
            state for state, _ in seen if all(self.process(*each).call is None for each in enumerate(state.answers))
        ]

    def all_of(self, state, at):
        while self.process(at, state.answers[at]).call is not None:
            state = self.after(state, at)
        return state

    def after(self, state, at):
        """Return the state after the next call of a process."""
        kind, name, data, base, begins = self.process(at, state.answers[at]).call
        began, files = state.began, dict(state.files)
        inside: list[Any] = []
        if begins:
            began = (*began[:at], (len(state.log), len(state.versions)), *began[at + 1 :])
        if kind in ("names", "directories"):
            inside = [each.removeprefix(name).partition("/") for each in files if each.startswith(name)]
        answer = files.get(name) if kind == "get" else name not in files if kind == "put" else None
        if kind == "names":
            answer = tuple(sorted(name + first for first, slash, _ in inside if not slash))
        elif kind == "directories":
            answer = tuple(sorted({f"{name}{first}/" for first, slash, _ in inside if slash}))
        elif kind == "put" and answer:
            state = replace(_put(state, files, name, data, base), files=state.files | {(name, data)})
        elif kind == "delete" and name in files:
            _check_unneeded(state, name)
            state = replace(state, files=state.files - {(name, files[name])})
        answers = (*state.answers[:at], (*state.answers[at], answer), *state.answers[at + 1 :])
        for done, result in self.process(at, answers[at]).ended:
            _check(state, self.programs[at][0], done, result, *began[at])
        return replace(state, answers=answers, began=began)


def _put(state, files, name, data, base):
    kind, chain = ("log", state.log) if "/log/" in name else ("versions", state.versions)
    if not name.endswith(".json") or int(name[-17:-5]) != len(chain):
        return state
    if chain and base != chain[-1]:
        raise Fault(f"{name} is the newest, and not made of the one before")
    made = _parsed(name, data)
    if kind == "versions" and made.data < _newest(state).data:
        raise Fault(f"{name} goes back")
    if lost := [segment.name for segment in getattr(made, "segments", ()) if segment.name not in files]:
        raise Fault(f"{name} names {lost}, which are gone")
    return replace(state, **{kind: (*chain, data)})


def _parsed(name, data):
    return (Entry if "/log/" in name else IndexVersion).from_bytes(data, name)


def _newest(state):
    return IndexVersion.from_bytes(state.versions[-1], f"{len(state.versions) - 1:012d}.json")


def _check_unneeded(state, name):
    newest = _newest(state)
    kept = {*range(len(state.log) - 2, len(state.log)), *range(newest.data + 1, len(state.log))}
    needed = {f"O/log/{number:012d}.json" for number in kept} | {segment.name for segment in newest.segments}
    if name in needed | {f"O/pipelines/{PIPELINE}/{number:012d}.json" for number in (0, newest.number)}:
        raise Fault(f"{name} is collected, and needed")


def _check(state, name, done, result, facts, others):
    """Check what a process was told, since there were so many facts and versions."""
    if done in ("head failed", "version failed", "collect failed"):
        raise Fault(f"{done}: {result}")
    if done == "append failed" and any(f'"attempt":"{name}-'.encode() in fact for fact in state.log[facts:]):
        raise Fault(f"an append is committed, and fails: {result}")
    chain = {"head": state.log[facts - 1 :], "append": state.log, "version": state.versions[others - 1 :]}.get(done)
    if chain is not None and result.to_bytes() not in chain:
        raise Fault(f"{done}: {result.number} of {result.attempt!r} was not the newest one meanwhile")


def mutated(monkeypatch, owner, name, old, new):
    """Let a function have other source."""
    module = owner if inspect.ismodule(owner) else inspect.getmodule(owner)
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    assert source.count(old) == 1
    made = dict(vars(module))
    exec("from __future__ import annotations\n" + source.replace(old, new), made)
    for place in (log_module, pipelines_module) if name == "newest" else (owner,):
        monkeypatch.setattr(place, name, made[name])


@pytest.fixture
def history(monkeypatch):
    """Facts and versions that can be collected; the last fact changed no object, and no version has it."""
    make = lambda: SimpleNamespace(hex=f"{Process.running.name}-{next(Process.running.ids)}")  # noqa: E731
    monkeypatch.setattr(uuid, "uuid4", make)
    for module in (log_module, collection):
        monkeypatch.setattr(module, "KEPT", KEPT)
    monkeypatch.setattr(
        follower_module, "compact", lambda _index, _definition, _shards, _prefix, runs: (*runs[:1], *runs[1:][-1:])
    )
    for kind in (Entry, IndexVersion):
        monkeypatch.setattr(kind, "from_bytes", staticmethod(functools.cache(kind.from_bytes)))

    def begin(*programs):
        first = IndexVersion(PIPELINE, 0, -1, facts=OBJECT.to_facts()).to_bytes()
        log = Entry(0, "begin", "begin", 1, PIPELINE, log="log").to_bytes()
        names = f"O/log/{0:012d}.json", f"O/pipelines/{PIPELINE}/{0:012d}.json"
        state = State(frozenset(zip(names, (log, first), strict=True)), (), (log,), (first,), ())
        (ended,) = Search(state, history=then(*programs)).run(0)
        return ended

    return begin


USED = [append("a"), follow(), append("b"), follow(), append("a"), follow(), append("b", changed=0)]
NEW = [append("a")]
FACTS = {"one": append("a"), "reader": heads, "later": LATER}
WRITERS = {"one": append("a"), "two": append("a"), "later": LATER}
SAME = {"one": follow(exact=True), "later_two": follow(exact=True), "reader": versions, "later": LATER}
LISTS = {"one": append("a"), "later_two": append("b"), "reader": head, "later": LATER}
FULL = {"one": follow(full=True), "reader": versions, "later": LATER}
COLLECTIONS = {"one": collects, "later": LATER}
FIRST = {"one": follow(), "reader": versions, "later": LATER}


@pytest.mark.parametrize(
    ("before", "programs"),
    [
        pytest.param(USED, FACTS, id="commits and reads"),
        pytest.param(USED, WRITERS, id="two commits of a datasource"),
        pytest.param(USED, FULL, id="a full build and reads"),
        pytest.param(NEW, FIRST, id="a first version and reads"),
        pytest.param(
            USED, {"one": append("a"), "two": append("b"), "collector": collects}, id="commits, and a collection"
        ),
        pytest.param(
            USED, {"one": follow(full=True), "two": follow(), "collector": collects}, id="builds, and a collection"
        ),
        pytest.param(USED, COLLECTIONS | {"two": append("a")}, id="two collections"),
        pytest.param(USED, SAME, id="two equal versions and reads"),
    ],
)
def test_in_every_order_nothing_is_lost_and_nothing_goes_back(history, before, programs):
    search = Search(history(*before), **programs)
    assert search.run()
    assert search.states > 1_000


@pytest.mark.parametrize(
    ("owner", "name", "old", "new", "before", "programs"),
    [
        pytest.param(Log, "head", "not self._holds(after)", "False", USED, FACTS, id="a known fact that is gone"),
        pytest.param(
            Log, "put", "won and self._holds(head) and", "won and", USED, WRITERS, id="a fact after one that is gone"
        ),
        pytest.param(
            facts_module, "newest", "if listed[-1:] != [last]", "if False", USED, LISTS, id="a fact of one listing"
        ),
        pytest.param(collection, "collect", "max(keep, 2)", "1", USED, WRITERS, id="the last fact alone is kept"),
        pytest.param(
            Follower,
            "_is_newest",
            "version.number > 1 and",
            "True or",
            USED,
            FULL,
            id="a version after one that is gone",
        ),
        pytest.param(
            collection,
            "collect",
            "for segment in newest.segments",
            "for segment in ()",
            USED,
            COLLECTIONS,
            id="listed alone",
        ),
        pytest.param(Follower, "_is_newest", "version.number > 1 and", "", NEW, FIRST, id="a first version put again"),
        pytest.param(
            Follower,
            "_last",
            "return last, head",
            "return self._index.newest_version(self._pipeline), head",
            USED,
            FULL,
            id="a build of an older fact",
        ),
        pytest.param(Follower, "_step", "attempt=uuid.uuid4().hex,", "", USED, SAME, id="equal versions"),
        pytest.param(IndexStore, "newest_version", "known.number > 0", "True", NEW, FIRST, id="a known first version"),
        pytest.param(
            IndexStore,
            "newest_version",
            "self.version(pipeline, known.number) == known",
            "True",
            USED,
            FULL,
            id="a known version",
        ),
    ],
)
def test_the_search_finds_a_schedule_for_wrong_code(monkeypatch, history, owner, name, old, new, before, programs):
    state = history(*before)
    mutated(monkeypatch, owner, name, old, new)
    search = Search(state, **programs)
    with pytest.raises(Fault):
        search.run(3)
