# SPDX-License-Identifier: Apache-2.0
"""Streams of files: finds new files, and deletes or archives files that were read."""
