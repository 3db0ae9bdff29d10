# SPDX-License-Identifier: Apache-2.0
"""Processes and jars for the servers that tests start."""
