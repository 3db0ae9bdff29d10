# SPDX-License-Identifier: Apache-2.0
"""A port of Spark 4.2.0's JSON parsing with the Java library Jackson: tokens, values, and the state after an error."""
