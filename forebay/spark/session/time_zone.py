# SPDX-License-Identifier: Apache-2.0
"""Reads the time zone of the query to which a task belongs (S18)."""

from __future__ import annotations

import copy
from typing import Final

from pyspark import TaskContext

from forebay.framework.source import Source
from forebay.options import class_options

OPTION: Final = "time_zone"
"""The Python name of the option that follows the session unless the user sets it."""

_PROPERTY: Final = "spark.sql.session.timeZone"


def in_zone_of_task(source: Source) -> Source:
    """Return the source with the time zone of the query that runs this task, if that zone is known.

    Called on the task thread, if the user set no time zone option. Spark passes the settings of the session at the
    start of the query to its tasks; the settings captured by `register` may be older or missing. If the time zone of a
    session was never set, Spark passes none.
    """
    context = TaskContext.get()
    zone = None if context is None else context.getLocalProperty(_PROPERTY)
    spec = next((spec for spec in class_options(type(source)) if spec.python_name == OPTION), None)
    if not zone or spec is None:
        return source
    value = spec.convert(zone, source=source.name)
    if value == getattr(source, OPTION):
        return source
    # A copy keeps the resolved schema and columns.
    moved = copy.copy(source)
    object.__setattr__(moved, OPTION, value)
    moved.check()
    return moved
