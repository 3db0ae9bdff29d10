# SPDX-License-Identifier: Apache-2.0
"""Text to value as Spark casts it, for every room: dates, timestamps, times of day, time zones."""
