# SPDX-License-Identifier: Apache-2.0
"""Lists the files below the user's paths as Spark does: globs, hidden names, sink logs, partition values."""
