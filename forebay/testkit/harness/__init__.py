# SPDX-License-Identifier: Apache-2.0
"""Drives a source for the checks: sessions of its readers, its enumerators, and a small single-threaded host."""
