# SPDX-License-Identifier: Apache-2.0
"""The schema of a file source: columns inferred or given by the user, partition columns, `_metadata`."""
