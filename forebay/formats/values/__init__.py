# SPDX-License-Identifier: Apache-2.0
"""Converts text to values as Spark casts it: numbers, dates, timestamps, time zones, DDL; one by one and by column."""
