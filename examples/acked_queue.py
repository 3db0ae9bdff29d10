# SPDX-License-Identifier: Apache-2.0
"""A queue that delivers a message until it is acknowledged: spooled to a file first, then acknowledged, then read.

A queue forgets what is acknowledged, and a micro-batch must be readable again. So `latest` moves messages into a spool,
makes them durable there, and only then acknowledges them; `read` reads the spool. Run it:
``python examples/acked_queue.py``.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

import forebay
from forebay import SimpleSource, Split, option


class AckedQueue(SimpleSource):
    bounded = False
    consumes = True  # check() and `forebay verify` warn before they read it
    positions_are_rows = True  # a position is a line of the spool
    queue: str = option(doc="directory of the queue")
    spool: str = option(doc="the file that keeps the messages; on a disk that all tasks can read")
    pull_rows: int = option(default=1_000, doc="messages taken from the queue at a time")

    def schema(self) -> pa.Schema:
        return pa.schema({"id": pa.string(), "text": pa.string()})

    def latest(self, split: Split) -> int:
        with open(self.spool, "a+b") as spool:
            fcntl.flock(spool, fcntl.LOCK_EX)  # of one process at a time, until the file is closed
            spool.seek(0)
            lines = spool.read().splitlines(keepends=True)
            if lines and not lines[-1].endswith(b"\n"):  # a crash interrupted the write: it was not acknowledged
                spool.truncate(sum(map(len, lines[:-1])))
                del lines[-1]
            if len(lines) < (split.position or 0):
                raise forebay.DataLossError(
                    f"the spool {self.spool!r} has {len(lines)} messages, and {split.position} were read from it",
                    split=split.id,
                    position=split.position,
                    advice="restore the spool, or begin with a new checkpoint; no message was taken from the queue",
                )
            known = {json.loads(line)["id"] for line in lines}
            broker = Broker(self.queue)
            pulled = broker.pull(self.pull_rows)
            # Each once: those that are known were not acknowledged, and a pull may bring a message twice.
            new = {message["id"]: message for message in pulled if message["id"] not in known}
            spool.writelines(json.dumps(message).encode() + b"\n" for message in new.values())
            spool.flush()
            os.fsync(spool.fileno())
            sync_directory_of(self.spool)  # else a loss of power may take a new file with all its messages
            broker.acknowledge({message["id"] for message in pulled})
            return len(lines) + len(new)

    def read(self, split: Split) -> Iterator[dict[str, Any]]:
        with open(self.spool, "rb") as spool:
            for line in islice(spool, split.position or 0, split.end):
                yield json.loads(line)


def sync_directory_of(path: str) -> None:
    directory = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Broker:
    """Stands for the client of a real queue. Each message is a file, until it is acknowledged."""

    def __init__(self, place: str | Path) -> None:
        self.place = Path(place)

    def send(self, *texts: str) -> None:
        self.place.mkdir(exist_ok=True)
        first = len(list(self.place.iterdir()))
        for number, text in enumerate(texts, first):
            name = f"{os.urandom(4).hex()}-{number}"
            (self.place / f".{name}").write_text(json.dumps({"id": name, "text": text}))
            (self.place / f".{name}").rename(self.place / name)

    def pull(self, most: int) -> list[dict[str, Any]]:
        """Return messages, and keep them until they are acknowledged."""
        names = sorted(name for name in os.listdir(self.place) if not name.startswith("."))[:most]
        return [json.loads((self.place / name).read_text()) for name in names]

    def acknowledge(self, names: Iterable[str]) -> None:
        for name in names:
            (self.place / name).unlink()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        Broker(f"{directory}/queue").send("one", "two", "three")
        print(forebay.peek(AckedQueue(queue=f"{directory}/queue", spool=f"{directory}/spool"), 5))
        print(f"left in the queue: {os.listdir(f'{directory}/queue')}")
