# SPDX-License-Identifier: Apache-2.0
"""Provide a stream's splits: from a `DiscoveryEnumerator`, or from a `SplitEnumerator` with one virtual reader."""
