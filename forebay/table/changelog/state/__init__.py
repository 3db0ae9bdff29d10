# SPDX-License-Identifier: Apache-2.0
"""Vectorised keyed state: immutable, sorted segments of Arrow for each shard, and a manifest for each micro-batch."""
