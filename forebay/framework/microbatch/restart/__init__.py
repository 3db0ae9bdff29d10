# SPDX-License-Identifier: Apache-2.0
"""Restarts a stream from an offset: committed state, options that must not change, offsets of another source."""
