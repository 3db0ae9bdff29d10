# SPDX-License-Identifier: Apache-2.0
"""Decompresses files, and cuts compressed files into slices."""
