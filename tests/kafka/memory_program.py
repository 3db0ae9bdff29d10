# SPDX-License-Identifier: Apache-2.0
"""One task that reads a topic into a slow sink, in a process of its own; prints its memory at rest and at most."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.framework.tasks.read_task import ReadTask, run_task
from forebay.sources.kafka.source import KafkaSource

SLOW = 0.02
"""Seconds that the sink takes for a record batch."""


def megabytes(kind: str) -> int:
    """Return the process' memory: VmRSS now, VmHWM at most so far."""
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(kind))
    return int(line.split()[1]) // 1024


def task(address: str, topic: str) -> ReadTask:
    """Return the task that reads all of a topic."""
    source = KafkaSource(subscribe=[topic], kafka={"bootstrap.servers": address})
    options = HostOptions(num_partitions=1)
    (slices,) = plan_bounded(source, options)
    return ReadTask(source, tuple(slices), options, 0, 1)


def main(address: str, small: str, big: str) -> None:
    """Read a small topic, so that everything is loaded, then the big one."""
    for _ in run_task(task(address, small)):
        pass
    idle, rows = megabytes("VmRSS"), 0
    for delivered in run_task(task(address, big)):
        rows += delivered.batch.num_rows
        del delivered
        time.sleep(SLOW)
    sys.stdout.write(f"{rows} {idle} {megabytes('VmHWM')}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
