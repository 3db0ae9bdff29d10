# SPDX-License-Identifier: Apache-2.0
"""Infers a schema from JSON as JsonInferSchema of Spark 4.2.0 does."""
