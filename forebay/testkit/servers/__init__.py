# SPDX-License-Identifier: Apache-2.0
"""Servers and proxies that tests start, and the processes and jars that they need."""
