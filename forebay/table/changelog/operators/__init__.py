# SPDX-License-Identifier: Apache-2.0
"""Stateful operators over Arrow: from the events of a micro-batch and the state, they make changes and new entries."""
