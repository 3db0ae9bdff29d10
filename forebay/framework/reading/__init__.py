# SPDX-License-Identifier: Apache-2.0
"""Reads splits in one task: fetchers, the queue of fetched results, the default reader, generator workers."""
