# SPDX-License-Identifier: Apache-2.0
"""The fastest way to read JSON lines: those with the same names in the same order."""
