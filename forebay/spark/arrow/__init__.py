# SPDX-License-Identifier: Apache-2.0
"""From record batches of a source to record batches that Spark accepts."""
