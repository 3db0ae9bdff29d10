# SPDX-License-Identifier: Apache-2.0
"""Plain-Python references of the changelog operators: slow, and short enough to read as definitions.

Tests compare the vectorised operators with them. One `step` takes one micro-batch.
"""
