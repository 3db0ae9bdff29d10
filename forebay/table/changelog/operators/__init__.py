# SPDX-License-Identifier: Apache-2.0
"""Stateful operators over Arrow: the events of a micro-batch and the state before it give changes and new entries."""
