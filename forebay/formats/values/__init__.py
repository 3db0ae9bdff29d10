# SPDX-License-Identifier: Apache-2.0
"""Converts text to values as Spark's CAST does: numbers, booleans, dates, timestamps, time zones and schemas (DDL).

Some modules convert one text at a time, others a whole column.
"""
