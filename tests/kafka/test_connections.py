# SPDX-License-Identifier: Apache-2.0
"""The hooks into kafka-python's connections fit the installed one, and without them it works as it is."""

from __future__ import annotations

import pytest
from kafka.admin import KafkaAdminClient
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaTCPTransport

from forebay.sources.kafka.client import connections
from forebay.sources.kafka.client.connections import connect


def test_the_hooks_fit_the_kafka_python_that_is_installed(broker):
    assert connections.unexpected_internal() is None
    admin = connect(KafkaAdminClient, {"bootstrap_servers": broker.address})
    assert isinstance(admin._manager, connections.Connections)
    admin.close()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (KafkaConnectionManager, "_build_transport"),
        (KafkaTCPTransport, "_sock_recv"),
        (KafkaConnection, "init_future"),
    ],
)
def test_a_missing_internal_is_named(monkeypatch, owner, name):
    monkeypatch.delattr(owner, name)
    assert connections.unexpected_internal() == f"{owner.__name__}.{name}"


def test_without_the_hooks_clients_are_as_the_library_makes_them(broker, monkeypatch):
    monkeypatch.setattr(connections, "unexpected_internal", lambda: "KafkaNetClient")
    admin = connect(KafkaAdminClient, {"bootstrap_servers": broker.address})
    assert not isinstance(admin._manager, connections.Connections)
    assert admin.list_topics() is not None
    admin.close()
