# SPDX-License-Identifier: Apache-2.0
"""From the paths that a user gave to files with partition values: globs, hidden names, sink logs, partitions."""
