# SPDX-License-Identifier: Apache-2.0
"""Splits CSV text into columns of tokens: with Arrow if the result equals Spark's, else with the tokenizer."""
