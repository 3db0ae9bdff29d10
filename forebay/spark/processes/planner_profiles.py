# SPDX-License-Identifier: Apache-2.0
"""Lets declarative pipelines read Python sources: a workaround for a bug of PySpark 4.2 and 4.3."""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

from pyspark import accumulators

_UTILS: Final = "pyspark.sql.worker.utils"
_SEND: Final = "send_accumulator_updates"


def skip_empty_profiles() -> None:
    """Make this planner process report no empty profiles. Called when a planner process imports the data source.

    Each planner process of Spark reports two profiles of its Python code, which are empty unless the session profiles
    data sources. Spark Connect sends them to the client, and `spark-pipelines run` accepts no such message: it fails
    with `UNKNOWN_RESPONSE` after a run in which every table was written. In other processes this does nothing.
    """
    utils: Any = sys.modules.get(_UTILS)
    send = getattr(utils, _SEND, None)
    registry: dict[int, Any] | None = getattr(accumulators, "_accumulatorRegistry", None)
    if send is None or registry is None or hasattr(send, "__wrapped__"):
        return

    @functools.wraps(send)
    def send_profiles(outfile: object) -> None:
        # Spark's own accumulators have negative ids.
        for own in [number for number, one in registry.items() if number < 0 and not getattr(one, "_value", True)]:
            del registry[own]
        send(outfile)

    setattr(utils, _SEND, send_profiles)
