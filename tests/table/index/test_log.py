# SPDX-License-Identifier: Apache-2.0
"""The log's commit: two writers, owners, lost answers, paused writers, attempts that nobody sees."""

from __future__ import annotations

import pytest

from forebay.errors import ConfigurationError, FatalError, RetriableError
from forebay.state.local_state_store import LocalStateStore
from forebay.table.index import changelog
from forebay.table.index import gc as collection
from forebay.table.index import log as log_module
from forebay.table.index import verify as verify_module
from forebay.table.index.flush import flush
from forebay.table.index.gc import collect, files_of


class Meeting:
    """Runs something once, just before the next put of a fact of the log; or loses the answer to that put."""

    def __init__(self, monkeypatch):
        self._put = LocalStateStore.put_if_absent
        self.before = self.instead = None
        monkeypatch.setattr(LocalStateStore, "put_if_absent", self.patched())

    def patched(self):
        def put(store, name, data):
            return self.put(store, name, data)

        return put

    def put(self, store, name, data):
        if "/log/" in name and self.before is not None:
            run, self.before = self.before, None
            run()
        done = self._put(store, name, data)
        if "/log/" in name and self.instead is not None:
            answer, self.instead = self.instead, None
            return answer
        return done


@pytest.fixture
def meeting(monkeypatch):
    return Meeting(monkeypatch)


def test_two_writers_of_two_datasources_both_commit(objects, meeting):
    objects.commit("a", [{"id": 1, "name": "x"}])
    meeting.before = lambda: objects.commit("b", [{"id": 1, "city": "c"}])
    assert objects.commit("a", [{"id": 1, "name": "y"}]).number == 3
    assert objects.rows(objects.node()) == [{"id": 1, "name": "y", "note": None, "city": "c"}]


def test_of_two_writers_of_one_datasource_the_second_is_refused(objects, meeting):
    objects.commit("a", [{"id": 1, "name": "x"}])
    meeting.before = lambda: objects.commit("a", [{"id": 1, "name": "first"}, {"id": 2, "name": "two"}])
    with pytest.raises(RetriableError, match=r"another transaction has changed the datasource 'a'[\s\S]*commit again"):
        objects.commit("a", [{"id": 1, "name": "second"}], "snapshot")
    assert objects.rows(objects.node(), "id", "name") == [(1, "first"), (2, "two")]


def test_the_error_names_the_query_that_changed_the_datasource_meanwhile(objects, meeting):
    objects.commit("a", [{"id": 1, "name": "x"}])
    meeting.before = lambda: objects.commit("a", [{"id": 1, "sequence": 1}], transaction="q/0", owner="q", batch=0)
    with pytest.raises(RetriableError, match="the streaming query q has changed the datasource 'a'"):
        objects.commit("a", [{"id": 1, "name": "second"}])


def test_a_datasource_has_one_owner(objects):
    objects.commit("a", [{"id": 1, "sequence": 1}], transaction="q/0", owner="q", batch=0)
    for owner, this in (("other", "the query other"), (None, "Funnel.commit")):
        with pytest.raises(ConfigurationError, match=rf"fed by the streaming query q, not by {this}[\s\S]*adopt=True"):
            objects.commit("a", [{"id": 1}], owner=owner, batch=0)
    objects.commit("b", [{"id": 1, "city": "of a batch"}])
    assert objects.commit("a", [{"id": 1, "name": "mine"}], adopt=True).applied
    assert objects.node().get(1)["name"] == "mine"
    assert objects.commit("a", [{"id": 1, "sequence": 2}], transaction="other/0", owner="other", batch=0).applied
    with pytest.raises(ConfigurationError, match="fed by the streaming query other, not by the query q"):
        objects.commit("a", [{"id": 1, "sequence": 3}], transaction="q/1", owner="q", batch=1)


def test_a_stream_that_does_not_begin_at_its_first_micro_batch_is_refused(objects):
    """As when a replacement that alone had its datasource was dropped: rows that it brought are not there."""
    rows = [{"id": 1, "name": "x", "sequence": 1}]
    with pytest.raises(ConfigurationError, match=r"the query q is at micro-batch 2[\s\S]*with a new checkpoint"):
        objects.commit("a", rows, transaction="q/2", owner="q", batch=2)
    assert objects.commit("a", rows, transaction="q/2", owner="q", batch=2, adopt=True).applied
    assert objects.commit("a", rows, transaction="q/3", owner="q", batch=3).applied


def test_a_micro_batch_that_is_repeated_is_skipped(objects):
    rows = [{"id": 1, "name": "x", "sequence": 1}]
    assert objects.commit("a", rows, transaction="q/0", owner="q", batch=0).applied
    assert not objects.commit("a", rows, transaction="q/0", owner="q", batch=0).applied
    with pytest.raises(ConfigurationError, match="other rows"):
        objects.commit("a", [{"id": 2, "sequence": 1}], transaction="q/0", owner="q", batch=0)


def test_an_old_micro_batch_of_which_nothing_is_known_is_refused(objects, monkeypatch):
    """A deleted checkpoint begins with batch 0 again; skipping it in silence would lose rows for ever."""
    monkeypatch.setattr("forebay.table.index.transactions.KNOWN", 2)
    for number in range(4):
        rows = [{"id": number, "sequence": number}]
        objects.commit("a", rows, transaction=f"q/{number}", owner="q", batch=number)
    with pytest.raises(ConfigurationError, match="micro-batch 0 of the query q is older than the last one"):
        objects.commit("a", [{"id": 9, "sequence": 9}], transaction="q/0", owner="q", batch=0)


def test_an_empty_micro_batch_is_no_fact_of_the_log(objects):
    objects.commit("a", [{"id": 1, "sequence": 1}], transaction="q/0", owner="q", batch=0)
    assert objects.commit("a", [], transaction="q/1", owner="q", batch=1).number == 1
    assert objects.index.log.head().number == 1


def test_a_put_whose_answer_is_lost_is_committed_once(objects, meeting):
    objects.commit("a", [{"id": 1, "name": "x"}])
    meeting.instead = False
    assert objects.commit("a", [{"id": 1, "name": "y"}]).number == 2
    assert objects.index.log.head().number == 2


def collected(objects, last):
    """Delete the facts of the log up to a number, in ascending order."""
    for number in range(last + 1):
        objects.index.store.delete([objects.index.log.name(number)])


def test_a_paused_writer_that_puts_a_collected_number_again_has_not_committed(objects, meeting):
    objects.commit("a", [{"id": 1, "name": "x"}])

    def others():
        for number in range(3):
            objects.commit("b", [{"id": number, "city": "c"}])
        collected(objects, 3)

    meeting.before = others
    committed = objects.commit("a", [{"id": 1, "name": "late"}])
    # The number 2 was free again. The put of it counts for nothing; the next one does.
    assert committed.number == 5
    assert objects.index.log.numbers() == [4, 5]
    assert objects.node().get(1)["name"] == "late"


def test_a_paused_writer_of_a_datasource_that_moved_is_refused(objects, meeting):
    objects.commit("a", [{"id": 1, "name": "x"}])

    def others():
        for number in range(3):
            objects.commit("a", [{"id": 1, "name": str(number)}])
        collected(objects, 3)

    meeting.before = others
    with pytest.raises(RetriableError, match=r"another transaction has changed the datasource 'a'[\s\S]*commit again"):
        objects.commit("a", [{"id": 1, "name": "late"}])
    assert objects.index.log.numbers() == [4]
    assert objects.node().get(1)["name"] == "2"


def test_a_commit_that_others_follow_and_gc_collects_at_once_is_committed(objects, meeting, monkeypatch):
    """The fact before is gone when the writer looks for it, and yet its own put was good."""
    objects.commit("a", [{"id": 1, "name": "x"}])
    get = LocalStateStore.get

    def late(store, name):
        if name == objects.index.log.name(1) and objects.index.log.numbers()[-1] == 2:
            monkeypatch.setattr(LocalStateStore, "get", get)
            for number in range(2):
                objects.commit("b", [{"id": number, "city": "c"}])
            collected(objects, 2)
        return get(store, name)

    meeting.before = lambda: monkeypatch.setattr(LocalStateStore, "get", late)
    assert objects.commit("a", [{"id": 1, "name": "y"}]).number == 2
    assert objects.index.log.numbers() == [3, 4]
    assert objects.node().get(1)["name"] == "y"


def test_a_commit_beside_the_smallest_collection_is_committed(objects, meeting, monkeypatch):
    """Its fact is the newest one, and all older ones would go before the writer looks for the one before."""
    objects.commit("a", [{"id": 1, "name": "x"}])
    objects.commit("a", [{"id": 1, "name": "y"}])
    get = LocalStateStore.get

    def late(store, name):
        if name == objects.index.log.name(2) and objects.index.log.numbers()[-1] == 3:
            monkeypatch.setattr(LocalStateStore, "get", get)
            objects.follow()
            collect(objects.index, keep=1, versions=1)
        return get(store, name)

    meeting.before = lambda: monkeypatch.setattr(LocalStateStore, "get", late)
    assert objects.commit("a", [{"id": 1, "name": "z"}]).number == 3
    assert objects.index.log.numbers() == [2, 3]
    assert objects.node().get(1)["name"] == "z"


def test_a_commit_to_what_is_removed_meanwhile_is_refused(objects, meeting):
    objects.commit("a", [{"id": 1, "name": "x"}])
    meeting.before = lambda: collected(objects, 1)
    with pytest.raises(
        RetriableError, match="went away, or was removed, while O/log/000000000002.json was put; it may be committed"
    ):
        objects.commit("a", [{"id": 1, "name": "y"}])
    assert objects.index.log.numbers() == []


def test_an_attempt_that_began_too_long_ago_is_refused(objects, meeting, monkeypatch):
    monkeypatch.setattr(log_module, "KEPT", 3)
    objects.commit("a", [{"id": 1, "name": "x"}])
    base = objects.index.log.head()
    for number in range(3):
        objects.commit("b", [{"id": number, "city": "c"}])
    with pytest.raises(RetriableError, match=r"began at fact 1 of the log, and the log is at 4[\s\S]*commit it again"):
        objects.commit("a", [{"id": 1, "name": "y"}], base=base)


def gone_on(objects, monkeypatch):
    """A fact of the log; then others went on until its files were collected."""
    monkeypatch.setattr(log_module, "KEPT", 2)
    monkeypatch.setattr(collection, "KEPT", 2)
    monkeypatch.setattr(changelog, "RUNS", 1)
    head = objects.index.head()
    for number in range(6):
        objects.commit("a", [{"id": 1, "name": f"{number}"}])
    collect(objects.index, keep=1, versions=1)
    return head


def test_files_that_were_collected_are_no_damage(objects, monkeypatch):
    objects.commit("a", [{"id": number, "name": "x"} for number in range(5)])
    base = gone_on(objects, monkeypatch)
    with pytest.raises(RetriableError, match="fact 1 of the log was collected while its files were read"):
        objects.commit("a", [{"id": 1, "name": "late"}], base=base)
    objects.node().edit(1, name="mine")
    objects.flush()
    objects.node().edit(2, name="mine")
    first = []

    def hashes(definition, keys):
        if not first:
            first.append(gone_on(objects, monkeypatch))
            objects.node().edit(3, name="mine")
            objects.flush()
            gone_on(objects, monkeypatch)
        return [objects.key_hash(key) for key in keys]

    with pytest.raises(RetriableError, match="was collected while its files were read"):
        flush(objects.index, hashes)
    damaged = verify_module._damaged
    monkeypatch.setattr(verify_module, "_damaged", lambda *given: (gone_on(objects, monkeypatch), *damaged(*given))[1:])
    with pytest.raises(RetriableError, match="was collected while its files were read"):
        verify_module.verify(objects.index)
    monkeypatch.undo()
    assert verify_module.verify(objects.index).is_equal
    objects.index.store.delete([next(files_of(objects.index.head()))])
    assert "does not exist" in str(verify_module.verify(objects.index))
    with pytest.raises(FatalError, match="does not exist"):
        objects.follow(full=True)


def test_a_reader_that_meets_a_number_that_was_put_again_lists_the_log(objects):
    for number in range(5):
        objects.commit("a", [{"id": 1, "name": str(number)}])
    old, stale = objects.index.log.get(1), objects.index.log.get(2)
    collected(objects, 4)
    objects.index.store.put_if_absent(objects.index.log.name(2), stale.to_bytes())
    assert objects.index.log.head(old).number == 5


def test_two_processes_that_begin_use_one_definition(objects_at, objects):
    objects.begin()
    again = objects_at(location=objects.location)
    again.commit("a", [{"id": 1, "name": "x"}])
    assert objects.commit("b", [{"id": 1, "city": "c"}]).number == 2


def test_a_definition_whose_writer_was_killed_before_the_log_began_does_not_stay(objects_at, objects, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(log_module.Log, "begin", lambda log, entry: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            objects.begin()
    other = objects_at(
        type(objects.definition)("O", {"id": "string"}, objects.definition.datasources), objects.location
    )
    other.commit("a", [{"id": "x"}])
    assert other.index.log.head().serving == "000002"


def test_another_definition_is_refused(objects_at, objects):
    objects.begin()
    other = objects_at(
        type(objects.definition)("O", {"id": "string"}, objects.definition.datasources), objects.location
    )
    with pytest.raises(ConfigurationError, match="the definition of 'O' differs from the one that serves"):
        other.commit("a", [{"id": "x"}])


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data.replace(b'"live":1', b'"live":2')])
def test_a_damaged_fact_is_named(objects, damage):
    objects.commit("a", [{"id": 1}])
    name = objects.index.log.name(1)
    data = objects.index.store.get(name)
    objects.index.store.delete([name])
    objects.index.store.put_if_absent(name, damage(data))
    with pytest.raises(FatalError, match=rf"{name}[\s\S]*restore the location from a backup"):
        objects.index.log.head()


def test_a_file_outside_of_the_location_is_refused(objects):
    objects.commit("a", [{"id": 1}])
    entry = objects.index.log.get(1)
    hostile = entry.to_bytes().replace(b"O/states/a/", b"../../etc/s")
    with pytest.raises(FatalError):
        log_module.Entry.from_bytes(hostile, "x")


@pytest.mark.parametrize("moved", [True, False])
def test_a_writer_whose_files_were_collected_while_it_paused_is_told_why(objects, monkeypatch, moved):
    monkeypatch.setattr(log_module, "KEPT", 2)
    monkeypatch.setattr(collection, "KEPT", 2)
    objects.commit("a", [{"id": 1, "name": "x"}])
    late = objects.defined(objects.definition)
    append = late.index.log.append

    def meanwhile(*arguments):
        if moved:
            objects.commit("a", [{"id": 1, "name": "theirs"}])
        for number in range(4):
            objects.commit("b", [{"id": 1, "city": f"{number}"}])
        assert any("/states/a/" in name for name in collect(objects.index, keep=1, versions=1).files)
        return append(*arguments)

    monkeypatch.setattr(late.index.log, "append", meanwhile)
    error, text = (
        (log_module.MovedError, "another transaction") if moved else (RetriableError, "its files may be collected")
    )
    with pytest.raises(error, match=text):
        late.commit("a", [{"id": 2, "name": "late"}])
