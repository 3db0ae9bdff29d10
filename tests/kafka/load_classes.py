# SPDX-License-Identifier: Apache-2.0
"""Runs a broker, so that its JVM can write an archive of Kafka's classes when it ends. See the Makefile."""

from __future__ import annotations

from kafka import KafkaConsumer, KafkaProducer

from forebay.testkit.kafka_broker import KafkaBroker

if __name__ == "__main__":
    with KafkaBroker() as broker:
        broker.create_topic("loaded", 2)
        with KafkaProducer(bootstrap_servers=broker.address, acks="all") as producer:
            producer.send("loaded", b"value").get(30)
        with KafkaConsumer("loaded", bootstrap_servers=broker.address, auto_offset_reset="earliest") as consumer:
            next(consumer)
        running = broker._process
        assert running is not None
        running.terminate()
        running.wait(300)
