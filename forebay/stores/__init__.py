# SPDX-License-Identifier: Apache-2.0
"""Stores of files: the local file system, S3, and every store that fsspec supports."""
