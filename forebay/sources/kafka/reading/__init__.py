# SPDX-License-Identifier: Apache-2.0
"""Reads partitions in tasks: fetches ranges of offsets, and decodes keys and values."""
