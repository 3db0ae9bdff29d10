# SPDX-License-Identifier: Apache-2.0
"""The reading side: hand-over queue, fetchers, the default reader, generator workers."""
