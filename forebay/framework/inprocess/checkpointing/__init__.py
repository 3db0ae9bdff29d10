# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the in-process host: when they are taken, and their files."""
