# SPDX-License-Identifier: Apache-2.0
"""A port of how Spark 4.2.0 reads JSON with the Java library Jackson: tokens, values, and the state after an error."""
