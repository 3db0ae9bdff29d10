# SPDX-License-Identifier: Apache-2.0
"""Keys, changelogs and indexes without Spark: what Flink calls the table runtime."""
