# SPDX-License-Identifier: Apache-2.0
"""The time zone of the query that a task works for: better than what `register` saw of the session (S18)."""

from __future__ import annotations

import copy
from typing import Final

from pyspark import TaskContext

from forebay.framework.source import Source
from forebay.options import class_options

OPTION: Final = "time_zone"
"""The Python name of the option of a source that follows the session, unless the user gives it."""

_PROPERTY: Final = "spark.sql.session.timeZone"


def in_zone_of_task(source: Source) -> Source:
    """Return the source in the time zone of the query that runs this task; itself where nothing is known of it.

    Called on the task thread, before anything is read, for a source whose time zone the user left out. Spark hands
    the settings of the session to tasks as they are when the query runs; those of `register` may be older, or of
    nobody. A session whose time zone was never set hands none.

    Raises:
        ConfigurationError: The source does not take this time zone.
    """
    context = TaskContext.get()
    zone = None if context is None else context.getLocalProperty(_PROPERTY)
    spec = next((spec for spec in class_options(type(source)) if spec.python_name == OPTION), None)
    if not zone or spec is None:
        return source
    value = spec.convert(zone, source=source.name)
    if value == getattr(source, OPTION):
        return source
    # A copy, not a new source: it keeps the schema and the columns that were settled.
    moved = copy.copy(source)
    object.__setattr__(moved, OPTION, value)
    moved.check()
    return moved
