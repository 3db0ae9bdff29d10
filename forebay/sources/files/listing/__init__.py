# SPDX-License-Identifier: Apache-2.0
"""Lists the files below the user's paths with partition values: globs, hidden names, sink logs."""
