# SPDX-License-Identifier: Apache-2.0
"""Where a stream's splits come from: a `DiscoveryEnumerator`, or a `SplitEnumerator` with one virtual reader."""
