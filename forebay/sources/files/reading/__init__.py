# SPDX-License-Identifier: Apache-2.0
"""Reads the splits of a file source: one file after another, or small files together."""
