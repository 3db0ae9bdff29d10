# SPDX-License-Identifier: Apache-2.0
"""The Spark hosts, thin adapters to Spark. The only package that imports pyspark."""
