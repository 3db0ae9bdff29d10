# SPDX-License-Identifier: Apache-2.0
"""Negotiation of ends that are not known before reading (S14).

The planner probes for records and plans without an end (`negotiated_splits`). The attempts of a task negotiate chunk by
chunk (`chunk_reader`), with claims below `stateLocation` (`claim`).
"""
