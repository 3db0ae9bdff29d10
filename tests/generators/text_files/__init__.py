# SPDX-License-Identifier: Apache-2.0
"""Random CSV and JSON files, plain and compressed. Used by tests/formats and tests/sources/files."""
