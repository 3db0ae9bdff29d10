# SPDX-License-Identifier: Apache-2.0
"""Coordinates the readers of a run: coordinator, enumerator context, assignment, discovery, states of splits."""
