# SPDX-License-Identifier: Apache-2.0
"""Lists files with partition values from the user's paths: globs, hidden names, sink logs, partitions."""
