# SPDX-License-Identifier: Apache-2.0
"""A port of what Spark 4.2.0 does with Jackson: tokens, values, and the state after an error."""
