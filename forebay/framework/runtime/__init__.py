# SPDX-License-Identifier: Apache-2.0
"""Threads and signals, the retry policy, clients that outlive a read, and calls of connector methods."""
