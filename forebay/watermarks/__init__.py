# SPDX-License-Identifier: Apache-2.0
"""Event time: strategies, generators, per-split outputs, idleness and alignment, without splits, readers or threads.

An event time or watermark is an `int`, microseconds since 1970-01-01 UTC. A duration is a `float`, seconds. A rule
about records applies to the record batch: its earliest and latest event time. One thread calls each object, so nothing
takes a lock.
"""
