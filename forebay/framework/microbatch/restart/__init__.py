# SPDX-License-Identifier: Apache-2.0
"""Restarting a stream from an offset: committed state, options that may not change, offsets of another source."""
