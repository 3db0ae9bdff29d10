# SPDX-License-Identifier: Apache-2.0
"""Splits CSV text into records and columns of tokens: with Arrow where it equals Spark, else by univocity's rules."""
