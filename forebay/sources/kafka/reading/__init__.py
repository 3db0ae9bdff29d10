# SPDX-License-Identifier: Apache-2.0
"""Reads the partitions of a task: fetches ranges of offsets, and decodes keys and values."""
