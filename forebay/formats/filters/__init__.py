# SPDX-License-Identifier: Apache-2.0
"""Filters that users write as options: parsed, bound to column types, and evaluated as Spark's `where`."""
