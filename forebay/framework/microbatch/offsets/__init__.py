# SPDX-License-Identifier: Apache-2.0
"""Offsets of a stream: their format, the finished splits they remember, and the segments below `stateLocation`."""
