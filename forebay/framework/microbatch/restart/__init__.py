# SPDX-License-Identifier: Apache-2.0
"""Restarting a stream from an offset: committed state, fixed options, offsets of another source."""
