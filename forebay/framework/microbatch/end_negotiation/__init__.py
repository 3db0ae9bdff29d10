# SPDX-License-Identifier: Apache-2.0
"""Negotiation of the end of a split whose end is unknown before it is read (S14).

The planner looks for a first record, and plans the split without an end (`negotiated_splits`). Tasks read it in chunks.
Before a task delivers a chunk, it writes the end of the chunk below `stateLocation` (`claim`), so that every attempt of
the task delivers the same rows (`chunk_reader`).
"""
