# SPDX-License-Identifier: Apache-2.0
"""Checks of reads in other processes (rule RDR-5)."""

from __future__ import annotations

import time

from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.findings import Broken, NotApplicable
from forebay.testkit.harness.other_processes import read_elsewhere
from forebay.testkit.harness.subject import Subject
from forebay.testkit.harness.traces import difference

PROCESSES: Checks = []

_MOST = 20.0
"""Maximum seconds for the new processes; each imports pyarrow and the connector."""


@check_into(PROCESSES)
def other_processes_read_the_same(subject: Subject) -> None:
    """RDR-5: other processes, in other time zones, read the same rows in the same order."""
    traces = [trace for trace in subject.traces if trace.rows and trace.split.end is not None]
    traces = traces or [trace for trace in subject.traces if trace.rows and subject.source.bounded]
    if not traces:
        raise NotApplicable("no split has rows up to a known end")
    seconds = max(1.0, min(_MOST, subject.deadline - time.monotonic() - 1.0))
    first, *others = read_elsewhere(subject.source, [trace.split for trace in traces], seconds)
    for rows in others:
        for split_id, wanted in first.items():
            if rows[split_id] == wanted:
                continue
            reordered = sorted(rows[split_id]) == sorted(wanted)
            raise Broken(
                f"split {split_id!r}, read by two processes with the time zones UTC and another one: "
                f"{difference(rows[split_id], wanted)}",
                "order equal keys by something stable, such as the id; never by hash(), a set or a process id"
                if reordered
                else "let rows depend on the input alone: convert times with a time zone, such as "
                "datetime.fromtimestamp(t, UTC), and use no state of the process",
            )
