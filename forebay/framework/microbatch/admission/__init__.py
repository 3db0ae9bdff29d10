# SPDX-License-Identifier: Apache-2.0
"""Decides what a micro-batch reads: the available range of each split, limits, and the slices of each task."""
