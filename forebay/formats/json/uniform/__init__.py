# SPDX-License-Identifier: Apache-2.0
"""The fastest reader of JSON lines, for lines with the same names in the same order."""
