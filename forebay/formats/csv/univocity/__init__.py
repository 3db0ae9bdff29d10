# SPDX-License-Identifier: Apache-2.0
"""A port of the univocity CSV parser (2.9.1) with the settings of Spark 4.2.0."""
