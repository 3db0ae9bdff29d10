# SPDX-License-Identifier: Apache-2.0
"""Keys and changelogs without Spark: what Flink calls the table runtime."""
