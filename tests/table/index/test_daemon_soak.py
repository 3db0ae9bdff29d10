# SPDX-License-Identifier: Apache-2.0
"""`forebay index run` as a process of its own, with faults: each alert that the rules say comes once, and no other."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest

from forebay.errors import DataError
from forebay.index import Datasource, ObjectType, Property
from forebay.table.index.monitor import alerts
from forebay.table.index.replacement import begin_replacement
from forebay.table.index.runs import recorded
from forebay.table.index.verify import verify

RUN = """
import hashlib, sys, time
from pathlib import Path

from forebay.cli import index, main
from forebay.errors import RetriableError
from forebay.retry import RetryPolicy
from forebay.table.index import pipelines

place, rounds = Path(sys.argv[1]), [0]

class Faulty:
    # Fails, or is slow, for names that have the text of a file.
    def __init__(self, store):
        self._store, self.location = store, store.location
    def __getattr__(self, method):
        def call(*given):
            if (place / "fault").exists() and (place / "fault").read_text() in str(given[0]):
                raise RetriableError("injected: the store does not answer")
            if method == "put_if_absent" and (place / "slow").exists() and "/segments/" in given[0]:
                (place / "slow").unlink()
                time.sleep(12)
            return getattr(self._store, method)(*given)
        return call

def noted(*given):
    rounds[0] += 1
    (place / "new").write_text(str(rounds[0]))
    (place / "new").rename(place / "rounds")

class Daemon(index.IndexDaemon):
    def __init__(self, *given, **options):
        pauses = RetryPolicy(first_pause=1.0, factor=1.0, max_pause=1.0)
        super().__init__(*given, **{**options, "retry": pauses, "each_round": noted})

def hashes(definition, keys):
    digests = (hashlib.blake2b(repr(("key", *key)).encode(), digest_size=8).digest() for key in keys)
    return [int.from_bytes(digest, signed=True) for digest in digests]

retrying = pipelines.RetryingStateStore
pipelines.RetryingStateStore = lambda store: Faulty(retrying(store))
index.IndexDaemon, index._key_hashes = Daemon, hashes
sys.exit(main(["index", "run", *sys.argv[2:]]))
"""
LIMIT = 15


def definition(name):
    properties = {"name": name, "note": Property("string", text=True), "size": Property("int")}
    return ObjectType(
        "O", {"id": "bigint"}, [Datasource("a", properties), Datasource("b", {"city": Property("string")})]
    )


class Soak:
    """An object type, the daemon of its location, and things that happen. Each returns the alerts that must come."""

    def __init__(self, objects_at, place):
        self.place = place
        self.objects = objects_at(
            definition(Property("string")), place / "store", types={"a": {"size": "string", "name": "string"}}
        )
        self.index = self.objects.index
        self.objects.commit("a", [self.row(number) for number in range(20)])
        self.seen, self.steps = 0, 0
        self.expected = Counter()
        self.start()

    def row(self, number, **values):
        return {"id": number, "name": str(number), "note": "late", "size": "1", **values}

    def start(self):
        (self.place / "rounds").unlink(missing_ok=True)
        options = ["--every", "0.5", "--delay", LIMIT, "--edits", LIMIT, "--duration", "10"]
        command = [sys.executable, "-P", "-c", RUN, self.place, self.objects.location, "O", *options]
        with (self.place / "log").open("a") as log:
            self.process = subprocess.Popen(list(map(str, command)), stderr=log, stdout=log)
        self.rounds(1)

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(60)

    def until(self, condition):
        end = time.monotonic() + 300
        while not condition():
            assert self.process.poll() is None and time.monotonic() < end, (self.place / "log").read_text()[-3000:]
            time.sleep(0.1)

    def rounds(self, more):
        path = self.place / "rounds"
        count = lambda: int(path.read_text()) if path.exists() else 0  # noqa: E731 - two lines
        wanted = count() + more
        self.until(lambda: count() >= wanted)

    def came(self):
        return Counter((each.rule, each.subject, each.breach) for each in alerts(self.index) if each.number > self.seen)

    def breach(self, *alerts_):
        """Wait until these come; they are over at the end of what happens."""
        wanted = Counter((*each, True) for each in alerts_)
        self.until(lambda: not wanted - self.came())
        self.expected += wanted + Counter((*each, False) for each in alerts_)

    def commit(self, **values):
        self.steps += 1
        self.objects.commit("a", [self.row(self.steps % 19 + 1, note=f"{self.steps}", **values)], follow=False)

    def served(self):
        """Wait until the index has all facts with changes."""
        last = self.index.head().number

        def is_served():
            data = self.index.newest_version(self.index.head().serving).data
            more = [self.index.log.get(number) for number in range(data + 1, last + 1)]
            return not any(each.changed or each.kind == "flush" for each in more)

        self.until(is_served)

    @property
    def live(self):
        return f"index {self.index.head().serving}"

    def happens(self, what):
        self.expected = Counter()
        getattr(self, what)()
        self.served()
        self.until(lambda: not self.expected - self.came())
        self.rounds(2)
        assert self.came() == self.expected, (what, self.came(), self.expected)
        self.seen = max((each.number for each in alerts(self.index)), default=0)
        return self.expected

    def commits_come(self):
        for _ in range(5):
            self.commit()
            self.rounds(1)

    def it_is_killed(self):
        assert self.end(signal.SIGKILL) == -signal.SIGKILL
        self.commit()
        time.sleep(LIMIT + 1)
        self.start()

    def it_is_stopped_in_good_order(self):
        assert self.end(signal.SIGTERM) == 0
        self.commit()
        self.start()

    def it_pauses(self):
        self.process.send_signal(signal.SIGSTOP)
        self.commit()
        time.sleep(LIMIT + 1)
        self.process.send_signal(signal.SIGCONT)

    def the_store_is_away(self):
        (self.place / "fault").write_text("")
        self.commit()
        time.sleep(5)
        (self.place / "fault").unlink()

    def versions_cannot_be_written(self):
        (self.place / "fault").write_text("/segments/")
        self.commit()
        self.breach(("failed", self.live), ("delay", self.live))
        (self.place / "fault").unlink()

    def a_value_does_not_fit(self):
        self.objects.commit("a", [self.row(5, size="x")], follow=False)
        self.breach(("failed", self.live), ("delay", self.live))
        self.objects.commit("a", [self.row(5)], follow=False)

    def a_run_takes_long(self):
        (self.place / "slow").touch()
        self.commit()
        self.breach(("duration", self.live))
        self.commit()

    def a_commit_fails(self):
        with pytest.raises(DataError), recorded(self.index, "commit", "a") as run:
            run.did(since=self.index.head().number)
            raise DataError("a key comes twice", option="df", advice="correct the rows")
        self.breach(("failed", "commit a"))
        with recorded(self.index, "commit", "a") as run:
            self.commit()
            run.did(to=self.index.head().number)

    def edits_wait(self):
        with self.objects.node(cache=self.place / f"edits{self.steps}") as node:
            node.edit(1, city="edited")
            self.breach(("edits", "users"))
            node.edit_many([(number % 20, {"city": f"{number}"}) for number in range(1000)])
        last = self.index.edits.offsets()[-1]
        self.until(lambda: self.index.head().edits.offset >= last)

    def other(self, **options):
        """The definition with another property `name`."""
        now = self.index.definition(self.index.head().serving).properties["name"]
        return self.objects.defined(definition(replace(Property("string", filter=not now.filter), **options)))

    def replacement(self, new):
        begun = begin_replacement(self.index, new.definition, self.index.head().serving)
        assert begun.building is not None
        return begun.building.pipeline

    def it_replaces(self):
        new = self.other()
        name = self.replacement(new)
        self.commit()
        self.until(lambda: self.index.head().serving == name)
        self.objects = new

    def wrong_replacement(self):
        """Begin to replace strings by integers, of which one is no number."""
        if self.objects.definition.properties["name"].type == "int":
            self.it_replaces()
        self.objects.commit("a", [self.row(0, name="no number")], follow=False)
        new = self.other(type="int")
        name = self.replacement(new)
        self.breach(("failed", f"index {name}"), ("delay", f"index {name}"))
        return new, name

    def a_replacement_fails_and_is_corrected(self):
        new, name = self.wrong_replacement()
        self.commit()
        self.served()
        self.objects.commit("a", [self.row(0)], follow=False)
        self.until(lambda: self.index.head().serving == name)
        self.objects = new

    def a_replacement_fails_and_is_dropped(self):
        self.wrong_replacement()
        begin_replacement(self.index, None, self.index.head().serving)


HAPPENINGS = [
    name for name in vars(Soak) if name.partition("_")[0] in ("commits", "it", "the", "versions", "a", "edits")
]


@pytest.mark.soak
@pytest.mark.timeout(2 * 3600)
def test_the_command_raises_exactly_the_alerts_of_the_rules(objects_at, tmp_path):
    """All of it once; with FOREBAY_SOAK_SECONDS=3600 again and again for an hour."""
    end = time.monotonic() + float(os.environ.get("FOREBAY_SOAK_SECONDS", "0"))
    soak, draw, counts = Soak(objects_at, tmp_path), random.Random(5), Counter()
    try:
        while not counts or time.monotonic() < end:
            for what in draw.sample(HAPPENINGS, len(HAPPENINGS)):
                counts += soak.happens(what) + Counter([what])
        assert soak.end(signal.SIGTERM) == 0
    finally:
        soak.process.kill()
        soak.process.wait()
    assert verify(soak.index).is_equal
    sent = re.findall(
        r"^\S+ \S+ O: (ALERT|recovered): (\w+) of ([\w ]+):", (tmp_path / "log").read_text(), re.MULTILINE
    )
    expected = {each: count for each, count in counts.items() if not isinstance(each, str)}
    assert Counter((rule, subject, what == "ALERT") for what, rule, subject in sent) == expected
    times = {what: count for what, count in counts.items() if isinstance(what, str)}
    sys.stderr.write(f"{sum(expected.values())} alerts, as the rules say: {times}\n")
