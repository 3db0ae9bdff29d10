# SPDX-License-Identifier: Apache-2.0
"""Streams of files: finds new files, and cleans up files that were read."""
