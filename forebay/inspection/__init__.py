# SPDX-License-Identifier: Apache-2.0
"""For people who would rather look than read: a source's options and schema, and its first rows, as tables."""
