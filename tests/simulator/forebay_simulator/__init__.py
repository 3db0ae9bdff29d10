# SPDX-License-Identifier: Apache-2.0
"""Deterministic simulation: the whole machinery in one thread, in virtual time, under a seed that decides everything.

`python -m forebay_simulator --seeds 5000` simulates the in-process host over scripted sources. `simulate` is
one such run. With `--streams` it kills and restarts the planner of streams instead; `simulate_stream` is one of those.
With `--alignment` its splits have event times, and no record on time may be dropped.
`SimulatedRuntime` alone is for tests of anything else that is made of workers.
"""

from __future__ import annotations

from forebay_simulator.inline import InlineRuntime
from forebay_simulator.microbatch import StreamOutcome, simulate_stream
from forebay_simulator.runtime import Livelock, Schedule, SimulatedRuntime
from forebay_simulator.scenario import Fault
from forebay_simulator.simulation import Outcome, simulate

__all__ = [
    "Fault",
    "InlineRuntime",
    "Livelock",
    "Outcome",
    "Schedule",
    "SimulatedRuntime",
    "StreamOutcome",
    "simulate",
    "simulate_stream",
]
