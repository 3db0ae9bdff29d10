# SPDX-License-Identifier: Apache-2.0
"""Plans and runs bounded reads and micro-batches, independently of Spark."""
