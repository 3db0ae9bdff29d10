# SPDX-License-Identifier: Apache-2.0
"""Negotiation of the end of a split whose end is unknown before it is read (S14).

If the planner finds a first record in the split, it plans the split without an end (`negotiated_splits`). A task reads
it in chunks. Before a task delivers a chunk, it writes the end of the chunk below `stateLocation` (`claim`), so that
every attempt of the task delivers the same rows (`chunk_reader`).
"""
