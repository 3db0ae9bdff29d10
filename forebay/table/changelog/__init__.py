# SPDX-License-Identifier: Apache-2.0
"""Changelogs without Spark: change kinds, converters of change formats, keyed state, and operators."""
