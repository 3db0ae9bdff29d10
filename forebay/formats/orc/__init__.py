# SPDX-License-Identifier: Apache-2.0
"""Reads ORC files to record batches. Other packages use `format.OrcFormat` and `format.OrcOptions`."""
