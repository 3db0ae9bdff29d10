# SPDX-License-Identifier: Apache-2.0
"""Converts the rows that a connector yields to record batches: packing, safe casts, selected columns."""
