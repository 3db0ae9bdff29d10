# SPDX-License-Identifier: Apache-2.0
"""Plans the reading of partitions: discovery of topics, start and end offsets, deleted topics, cutting into tasks."""
