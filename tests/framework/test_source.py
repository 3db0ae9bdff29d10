# SPDX-License-Identifier: Apache-2.0
"""Sources: frozen dataclasses without a decorator, their options, cached clients, and classes of notebooks."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import threading

import pyarrow as pa
import pytest
from manual_clock import ManualClock
from pyspark import cloudpickle

import forebay
from forebay import ConfigurationError, Secret, SimpleSource, option
from forebay.framework.runtime.clients import LeasePool

MADE: list[str] = []


class HTTPOrders(SimpleSource):
    url: str = option(doc="where")
    token: Secret = option(default=Secret("hidden"))
    limits: dict[str, int] = option(default_factory=dict)

    def schema(self) -> pa.Schema:
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        yield {"n": 1}

    def check(self) -> None:
        if not self.url.startswith("http"):
            raise ConfigurationError("no address", option="url")

    @forebay.cached
    def client(self) -> object:
        """The client."""
        MADE.append(self.url)
        return object()


def test_a_subclass_is_a_frozen_keyword_only_dataclass_named_in_snake_case() -> None:
    """SRC-1: configuration that pickles and compares."""
    source = HTTPOrders(url="http://x")
    assert HTTPOrders.name == "http_orders"
    assert source == HTTPOrders(url="http://x")
    assert pickle.loads(pickle.dumps(source)) == source
    with pytest.raises(dataclasses.FrozenInstanceError):
        source.url = "y"  # type: ignore[misc]  # that is the point
    with pytest.raises(TypeError):
        HTTPOrders("http://x")  # type: ignore[misc]  # that is the point
    assert "hidden" not in repr(source)


def test_options_come_as_text_and_checks_run() -> None:
    assert HTTPOrders.from_options({"URL": "http://x"}).url == "http://x"
    with pytest.raises(ConfigurationError, match="no address"):
        HTTPOrders(url="ftp://x")
    with pytest.raises(ConfigurationError, match="did you mean 'url'"):
        HTTPOrders.from_options({"ulr": "http://x"})


def test_a_cached_client_is_one_per_options_and_process_and_never_pickled() -> None:
    MADE.clear()
    one, same, other = (HTTPOrders(url=url, limits={"a": 1}) for url in ("http://1", "http://1", "http://2"))
    assert one.client is same.client
    assert one.client is not other.client
    assert pickle.loads(pickle.dumps(one)).client is one.client
    assert MADE == ["http://1", "http://2"]
    assert HTTPOrders.client.__doc__ == "The client."


def test_a_cached_client_is_made_once_by_many_threads() -> None:
    MADE.clear()
    source, clients = HTTPOrders(url="http://many"), []
    threads = [threading.Thread(target=lambda: clients.append(source.client)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, clients))) == 1
    assert MADE == ["http://many"]


def test_a_class_of_a_notebook_cell_survives_pickling_by_value() -> None:
    """host-traps 21: such a class is rebuilt empty, then filled; also where its module does not exist."""

    class Local(HTTPOrders):
        extra: int = 3

    Local.__module__ = "a_notebook"
    back = pickle.loads(cloudpickle.dumps(Local))
    assert back is not Local or back(url="http://x").extra == 3
    rebuilt = back(url="http://x", extra="7")
    assert (rebuilt.extra, rebuilt.name) == (7, "local")
    assert [row["n"] for row in rebuilt.read(forebay.Split("all"))] == [1]


class Client:
    """Counts how often it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_clients_that_nobody_borrows_are_closed_after_a_while() -> None:
    clock = ManualClock()
    pool, old, new = LeasePool(clock), Client(), Client()
    pool.give_back("old", old)
    clock.advance(200)
    pool.give_back("new", new)
    assert pool.borrow("new", Client) is new
    clock.advance(101)
    assert not old.closed
    pool.give_back("new", new)
    assert (old.closed, new.closed) == (1, 0)
    assert pool.borrow("old", Client) is not old and pool.borrow("new", Client) is new


def test_of_very_many_clients_those_not_used_for_longest_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Client):
        def close(self) -> None:
            super().close()
            raise OSError("no route")

    pool, clients = LeasePool(ManualClock()), [Stuck() for _ in range(70)]
    for number, client in enumerate(clients):
        pool.give_back(number, client)
    assert [client.closed for client in clients] == [1] * 6 + [0] * 64
    assert "no route" in caplog.text
    assert pool.borrow(6, Client) is clients[6] and pool.borrow(5, Client) is not clients[5]


def test_leases_have_one_holder_at_a_time() -> None:
    pool, made = LeasePool(), []

    def make() -> object:
        made.append(1)
        return object()

    first, second = pool.borrow("k", make), pool.borrow("k", make)
    assert first is not second
    pool.give_back("k", first)
    assert pool.borrow("other", make) is not first
    assert pool.borrow("k", make) is first
    assert len(made) == 3


def test_the_schema_is_asked_for_once_per_read() -> None:
    """A schema may be inferred: hosts resolve it once, and it is pickled with the source."""
    asked: list[int] = []

    class Inferred(SimpleSource):
        def schema(self) -> pa.Schema:
            asked.append(1)
            return pa.schema({"n": pa.int64()})

        def splits(self):
            return ["a", "b", "c"]

        def read(self, split):
            yield {"n": 1}

    assert forebay.run(Inferred(), parallelism=2).to_table().num_rows == 3
    assert len(asked) == 1


class Mailbox(SimpleSource):
    """Options of every kind, to be misspelt."""

    user_name: str = option(doc="whose")
    start: int = 10
    client: dict[str, str] = option(default_factory=dict, prefix="client.")

    def schema(self) -> pa.Schema:
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        yield {"n": self.start}


@pytest.mark.parametrize(
    ("wrong", "meant"), [({"strat": 5}, "start"), ({"userName": "x"}, "user_name"), ({"clent": {}}, "client")]
)
def test_a_misspelt_option_in_python_names_the_nearest(wrong: dict[str, object], meant: str) -> None:
    for cls in (Mailbox, cloudpickle.loads(cloudpickle.dumps(Mailbox))):
        with pytest.raises(ConfigurationError, match=f"did you mean '{meant}'") as caught:
            cls(**{"user_name": "me", **wrong})
        assert caught.value.option == next(iter(wrong))
        assert caught.value.source == "mailbox"
        assert caught.value.advice == "use one of the options client, start, user_name"


def test_a_missing_option_in_python_is_named_with_its_meaning() -> None:
    with pytest.raises(ConfigurationError, match=r"'user_name' \(whose\)") as caught:
        Mailbox(start=1)  # type: ignore[call-arg]  # that is the point
    assert caught.value.option == "user_name"


def test_the_signature_of_a_source_shows_its_options_and_a_constructor_of_its_own_is_left_alone() -> None:
    assert list(inspect.signature(Mailbox).parameters) == ["user_name", "start", "client"]
    assert dataclasses.replace(Mailbox(user_name="me"), start=2).start == 2

    class Own(Mailbox):
        def __init__(self, anything: str) -> None:
            super().__init__(user_name=anything)

    assert Own("me").user_name == "me"


def test_a_misspelt_option_of_the_host_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'num_partitions'"):
        forebay.HostOptions(num_partition=3)  # type: ignore[call-arg]  # that is the point
