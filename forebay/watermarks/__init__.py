# SPDX-License-Identifier: Apache-2.0
"""Event time: strategies, generators, the combination of splits, idleness and alignment.

This room knows split ids, numbers and the time; it never sees a split object, a reader or a thread. Two units only:

- an *event time* or *watermark* is an `int`, microseconds since 1970-01-01 UTC;
- a *duration* is a `float` of seconds, like `forebay.clock` and the options.

Records move in record batches, so a rule that says "record" means a batch here: its event times are its earliest and
latest one, and everything in the batch leaves before any watermark that it causes. Nothing here takes a lock: one
thread (the task thread of a reader, or the planner) calls each object.
"""
