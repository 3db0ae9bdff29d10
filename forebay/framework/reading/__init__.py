# SPDX-License-Identifier: Apache-2.0
"""The reading side: hand-over queue, fetchers, the supplied reader."""
