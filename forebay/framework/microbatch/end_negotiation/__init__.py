# SPDX-License-Identifier: Apache-2.0
"""Ends that nobody knows before they are read (S14).

The planner asks what is new (`probing`) and takes the ends that were agreed on (`agreed`). The attempts of a task agree
chunk by chunk (`agreeing`, `chunks`), by `claims` below `stateLocation`.
"""
