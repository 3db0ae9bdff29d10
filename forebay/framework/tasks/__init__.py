# SPDX-License-Identifier: Apache-2.0
"""Plans a read that ends, and reads in one task what is planned: all of the Spark host of a batch read but pyspark."""
