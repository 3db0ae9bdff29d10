# SPDX-License-Identifier: Apache-2.0
"""Reads ORC files to record batches. Other rooms use `format.OrcFormat` and `format.OrcOptions`."""
