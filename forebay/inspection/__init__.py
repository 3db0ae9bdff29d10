# SPDX-License-Identifier: Apache-2.0
"""Shows a source or a query as tables: options, schema, first rows, positions, progress."""
