# SPDX-License-Identifier: Apache-2.0
"""Deterministic simulation: the whole machinery in one thread, in virtual time, under a seed that decides everything.

`python -m forebay.testkit.simulator --seeds 5000` simulates the in-process host over scripted sources. `simulate` is
one such run. `SimulatedRuntime` alone is for tests of anything else that is made of workers.
"""

from __future__ import annotations

from forebay.testkit.simulator.runtime import Livelock, Manner, SimulatedRuntime
from forebay.testkit.simulator.scenario import Fault
from forebay.testkit.simulator.simulation import Outcome, simulate

__all__ = ["Fault", "Livelock", "Manner", "Outcome", "SimulatedRuntime", "simulate"]
