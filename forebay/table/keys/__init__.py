# SPDX-License-Identifier: Apache-2.0
"""Streaming keys without Spark: which columns order and identify rows, and how transformations change a key."""
