# SPDX-License-Identifier: Apache-2.0
"""The Spark hosts: thin adapters, and the only room that imports pyspark."""
