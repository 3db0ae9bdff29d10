# SPDX-License-Identifier: Apache-2.0
"""Shared by the formats of text records: record borders, encodings, and the options of CSV and JSON."""
