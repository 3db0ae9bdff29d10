# SPDX-License-Identifier: Apache-2.0
"""Changelogs made from numbers: strict ones, their legal and arbitrary orders, and cuts into micro-batches."""
