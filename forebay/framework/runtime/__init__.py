# SPDX-License-Identifier: Apache-2.0
"""Threads and signals, clients that outlive a read, bounded calls of connector methods, and their errors."""
