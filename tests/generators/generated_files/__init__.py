# SPDX-License-Identifier: Apache-2.0
"""Files made from a number: whole ones with many schemas and codecs, and damaged ones. Used by tests/formats."""
