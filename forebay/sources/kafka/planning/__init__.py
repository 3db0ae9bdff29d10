# SPDX-License-Identifier: Apache-2.0
"""Plans reads of partitions: discovers topics, resolves start and end offsets, finds lost records, cuts tasks."""
