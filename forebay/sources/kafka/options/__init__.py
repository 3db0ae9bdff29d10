# SPDX-License-Identifier: Apache-2.0
"""Parses and validates the options of the Kafka source, without connecting to a broker."""
