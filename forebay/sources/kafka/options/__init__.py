# SPDX-License-Identifier: Apache-2.0
"""The options of the Kafka source and their meaning, without asking a broker."""
