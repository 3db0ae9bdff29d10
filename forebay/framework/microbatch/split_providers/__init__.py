# SPDX-License-Identifier: Apache-2.0
"""Provides the splits of a stream from a `DiscoveryEnumerator`, or from a `SplitEnumerator` with one virtual reader."""
