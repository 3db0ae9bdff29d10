# SPDX-License-Identifier: Apache-2.0
"""Converts change events of other systems to the shape of a changelog, and back, over Arrow record batches (C17)."""
