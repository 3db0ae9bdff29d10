# SPDX-License-Identifier: Apache-2.0
"""Text to value as Spark casts it: numbers, dates, timestamps, time zones, DDL; one by one and by column."""
