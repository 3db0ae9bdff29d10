# SPDX-License-Identifier: Apache-2.0
"""Everything that writes, killed and stopped anywhere, in one long history of one object type, beside a model."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from child_processes import WRITES, Child
from opensearchpy import Transport

from forebay.errors import ConfigurationError, RetriableError
from forebay.index import IndexDaemon, Property
from forebay.retry import RetryPolicy
from forebay.table.index import gc as collection
from forebay.table.index import log as log_module
from forebay.table.index.gc import collect, files_of
from forebay.table.index.opensearch import OpenSearchIndex
from forebay.table.index.verify import verify

KEYS = 30
EDITED = 5  # objects 0 to 4 are edited, and never leave their datasources
COLUMNS = {"a": "name", "b": "city"}
QUICK = RetryPolicy(first_pause=0.01, max_pause=0.05, timeout=5.0)


class History:
    """An object type, its second database, and what it must contain."""

    def __init__(self, objects_at, opensearch, seed):
        self.draw = random.Random(seed)
        self.objects = objects_at()
        self.index, self.server = self.objects.index, opensearch
        self.rows = {"a": {key: f"n{key}" for key in range(KEYS)}, "b": {}}
        self.notes = dict.fromkeys(range(EDITED), "late")
        self.objects.commit(
            "a", [{"id": key, "name": name, "note": "late"} for key, name in self.rows["a"].items()], "snapshot"
        )
        self.node = self.objects.node()
        self.step, self.counts = 0, Counter()

    def check(self):
        """What a node shows, which lived through all this, is the model."""
        before = self.node.version.data
        assert self.node.refresh().data >= before
        keys = sorted(self.rows["a"].keys() | self.rows["b"].keys())
        expected = [(key, self.rows["a"].get(key), self.rows["b"].get(key)) for key in keys]
        assert self.objects.rows(self.node, "id", "name", "city") == expected and self.node.count() == len(keys)
        assert {key: self.node.get(key)["note"] for key in self.notes} == self.notes

    def work(self, what):
        """Return what a child does, and what to do when it has ended."""
        return getattr(self, what)()

    def commit(self):
        source, name = self.draw.choice("ab"), f"t{self.step}"
        keys = self.draw.sample(range(KEYS), 4)
        rows: list[dict[str, Any]] = [
            {
                "id": key,
                COLUMNS[source]: name,
                "deleted": key >= EDITED and self.draw.random() < 0.3,
                **({"note": "late"} if source == "a" else {}),
            }
            for key in keys
        ]

        def done():
            committed = self.index.head().states.get(source)
            return committed is not None and committed.digest_of(name) is not None

        def count():
            for row in rows:
                self.rows[source].pop(row["id"], None)
                if not row["deleted"]:
                    self.rows[source][row["id"]] = name

        counted = False

        def stopped():
            nonlocal counted
            if done():  # before what others commit now
                count()
                counted = True

        def ended(code):
            was_done = done()
            assert was_done or code != 0
            if not was_done and self.draw.random() < 0.5:
                return  # another transaction follows, and this one never comes
            assert self.objects.commit(source, rows, transaction=name).applied is not was_done
            if not counted:
                count()

        self.stopped = stopped
        return lambda: self.objects.commit(source, rows, transaction=name) and 0, ended

    def edit(self):
        key, note = self.draw.randrange(EDITED), f"e{self.step}"

        def work():
            with self.objects.node(cache=self.objects._cache / "editor") as node:  # of one editor after the other
                node.edit(key, note=note)

        def ended(code):
            self.node.refresh()
            shown = self.node.get(key)["note"]
            assert shown == note or (code != 0 and shown == self.notes[key])
            self.notes[key] = shown

        return work, ended

    def flush(self):
        return lambda: self.objects.flush() and 0, lambda code: None

    def follow(self):
        self.objects.commit("b", [{"id": 0, "city": f"f{self.step}"}], follow=False)
        self.rows["b"][0] = f"f{self.step}"
        return lambda: self.objects.follow(full=self.step % 2 == 0) and 0, lambda code: self.objects.follow()

    def replacement(self):
        """To another definition, and back: with the swap."""
        first, second = self.index.definition(self.index.head().serving).datasources
        other = Property("string", filter=not first.properties["name"].filter)
        sources = [replace(first, properties={**first.properties, "name": other}), second]
        new = self.objects.defined(replace(self.objects.definition, datasources=sources))
        return lambda: new.replace() and 0, lambda code: None

    def gc(self):
        return lambda: self.collected(2), lambda code: None

    def collected(self, keep):
        collect(self.index, keep=keep, versions=1)

    def daemon(self):
        self.objects.commit("b", [{"id": 1, "city": f"d{self.step}"}], follow=False)
        self.rows["b"][1] = f"d{self.step}"

        def work():
            hashes = lambda definition, keys: [self.objects.key_hash(key) for key in keys]  # noqa: E731 - a value
            assert IndexDaemon(self.objects.location, key_hashes=hashes, alerts=[str]).step()

        return work, lambda code: self.objects.follow()

    def second(self):
        return OpenSearchIndex(self.objects.location, "O", self.server.url, name="killed", retry=QUICK)

    def opensearch(self):
        return lambda: self.second().catch_up() and 0, lambda code: None

    def hydration(self):
        """A node copies files into a cache that another one may have left half full."""

        def work():
            with self.objects.node(cache=self.objects._cache / "copies") as node:
                assert self.objects.rows(node, "id") == self.objects.rows(self.node, "id")

        return work, lambda code: work()

    def others(self):
        """What goes on while a process is stopped: enough that everything it began with is collected."""
        for number in range(5):
            city = f"o{self.step}.{number}"
            self.objects.commit("b", [{"id": 2, "city": city}])
            self.rows["b"][2] = city
        if self.draw.random() < 0.5:
            self.objects.flush()
        self.collected(1)

    def play(self, what, number):
        """Send a signal to a child at a random write of it. Return whether it came to that."""
        self.step += 1
        self.stopped = lambda: None
        work, ended = self.work(what)
        methods = METHODS.get(what, WRITES)

        def guarded():
            try:
                return work()
            except (ConfigurationError, RetriableError):  # a stopped process may be told that others were faster
                return 40

        child = Child(
            guarded, self.draw.randint(1, WRITERS[what]), self.draw.choice(["before", "after"]), number, methods
        )
        code = child.wait()
        met = code in (-signal.SIGKILL, signal.SIGSTOP)
        if code == signal.SIGSTOP:
            self.stopped()
            self.others()
            os.kill(child.pid, signal.SIGCONT)
            code = child.wait()
        assert code in (0, -signal.SIGKILL) or (code == 40 and number == signal.SIGSTOP), (what, code)
        ended(code)
        self.objects.follow()
        self.check()
        self.counts[what, signal.Signals(number).name] += met
        return met

    def prove(self):
        """The index, the node and OpenSearch are what the datasources say; no file is there that nothing names."""
        self.daemon()[0]()  # a replacement that was killed is done: its follower keeps no facts and edits any more
        assert self.index.head().building is None
        self.second().catch_up()
        assert self.second().verify().is_equal
        for number in range(log_module.KEPT + 2):
            self.objects.commit("b", [{"id": 3, "city": f"p{self.step}.{number}"}])
            self.rows["b"][3] = f"p{self.step}.{number}"
        self.objects.flush()
        self.collected(1)
        self.check()
        assert verify(self.index).is_equal and verify(self.index, self.node.view()).is_equal
        head, last = self.index.head(), self.index.head().number - log_module.KEPT
        names = {self.index.log.name(each) for each in self.index.log.numbers()}
        names |= {name for each in self.index.log.numbers() for name in files_of(self.index.log.get(each))}
        for pipeline in head.pipelines:
            for each in self.index.versions(pipeline):
                names |= {self.index.version_name(pipeline, each)}
                names |= {segment.name for segment in self.index.version(pipeline, each).segments}
        root = self.index.store.local_path("O").parent
        files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        # Nothing depends on runs and alerts; what merges of the last facts replaced is collected later.
        orphans = {
            name
            for name in files - names
            if name.split("/")[1] not in ("runs", "alerts")
            and ("/states/" not in name or int(name.rpartition("/")[2].partition("-")[0]) < last)
        }
        assert not orphans and names <= files


METHODS = {"opensearch": ((Transport, "perform_request"), *WRITES), "hydration": ((Path, "replace"),)}
"""What counts as a write where it is more than those of a directory."""

WRITERS = {
    "commit": 6,
    "edit": 1,
    "flush": 6,
    "follow": 3,
    "replacement": 10,
    "gc": 8,
    "daemon": 10,
    "opensearch": 9,
    "hydration": 2,
}
"""What writes, and about how many writes it makes."""


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
def test_1000_kills_and_100_stops_lose_double_and_leave_nothing(objects_at, opensearch, monkeypatch):
    """Whoever writes is killed or stopped at a write; the stops are longer than the retention."""
    monkeypatch.setattr(log_module, "KEPT", 3)
    monkeypatch.setattr(collection, "KEPT", 3)
    history = History(objects_at, opensearch, 40)
    history.second().catch_up()
    wanted = Counter({signal.SIGKILL: 1000, signal.SIGSTOP: 100})
    begun = time.monotonic()
    while +wanted:
        (number,) = history.draw.choices(list(wanted), [max(0, each) for each in wanted.values()])
        wanted[number] -= history.play(history.draw.choice([*WRITERS]), number)
        if history.step % 25 == 0:
            history.prove()
    history.prove()
    sys.stderr.write(f"{history.step} processes in {time.monotonic() - begun:.0f} s; {dict(history.counts)}\n")
    assert all(history.counts[what, number.name] for what in WRITERS for number in wanted)


@pytest.mark.soak
def test_two_editors_of_1000_edits_each_edit_once(objects_at, monkeypatch):
    """At once, in two processes, while a third one flushes."""
    objects = objects_at()
    objects.commit("a", [{"id": key, "name": "n"} for key in range(20)], "snapshot")

    def editor(name):
        def work():
            with objects.node(cache=objects._cache / uuid.uuid4().hex) as node:
                offsets = [node.edit(step % 20, **{name: f"{name}{step}"}) for step in range(1000)]
            assert len(set(offsets)) == 1000

        return Child(work)

    editors = [editor("name"), editor("city")]
    codes = []
    while len(codes) < 2:
        objects.flush()
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended in [each.pid for each in editors]:
            codes.append(os.waitstatus_to_exitcode(status))
    objects.flush()
    assert codes == [0, 0]
    ids = [each for number in objects.index.log.numbers() for each in objects.index.log.get(number).edits.ids]
    assert len(ids) == len(set(ids)) == objects.index.head().edits.offset == 2000
    node = objects.node()
    expected = [(key, f"name{980 + key}", f"city{980 + key}") for key in range(20)]
    assert objects.rows(node, "id", "name", "city") == expected and verify(objects.index, node.view()).is_equal
