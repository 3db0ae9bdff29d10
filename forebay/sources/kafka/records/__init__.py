# SPDX-License-Identifier: Apache-2.0
"""Decodes Kafka's record batches to Arrow column by column, without a Python object for each record."""
