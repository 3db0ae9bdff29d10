# SPDX-License-Identifier: Apache-2.0
"""Record batches as Kafka stores them → Arrow, column by column, without a Python object for each record."""
