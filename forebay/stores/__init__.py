# SPDX-License-Identifier: Apache-2.0
"""Trees of files: the local file system, and every store that fsspec knows."""
