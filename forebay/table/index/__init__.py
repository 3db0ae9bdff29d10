# SPDX-License-Identifier: Apache-2.0
"""Objects assembled from several datasources: a log of transactions, an index, and nodes that answer."""
