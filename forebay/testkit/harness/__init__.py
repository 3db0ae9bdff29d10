# SPDX-License-Identifier: Apache-2.0
"""Drives a source for the checks: calls its enumerator and readers, alone or in a host of one thread."""
