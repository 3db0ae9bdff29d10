# SPDX-License-Identifier: Apache-2.0
"""What text, CSV and JSON share: finding the borders of records, encodings, and options."""
