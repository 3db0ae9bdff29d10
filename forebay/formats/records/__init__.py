# SPDX-License-Identifier: Apache-2.0
"""What the formats of text records share: record borders, encodings, and the options of CSV and JSON."""
