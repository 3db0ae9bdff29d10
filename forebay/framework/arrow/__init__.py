# SPDX-License-Identifier: Apache-2.0
"""Converts the rows of an author to record batches: packing, safe casts, selected columns."""
