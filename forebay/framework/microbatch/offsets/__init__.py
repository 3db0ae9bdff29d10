# SPDX-License-Identifier: Apache-2.0
"""Offsets of a stream: their format, the finished splits in them, and the segments below `stateLocation`."""
