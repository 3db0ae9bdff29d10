# SPDX-License-Identifier: Apache-2.0
"""Plans and runs micro-batches, independently of Spark."""
