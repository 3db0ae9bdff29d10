# SPDX-License-Identifier: Apache-2.0
"""The columns of a file source: inferred, given by the user, from directories, and `_metadata`."""
