# SPDX-License-Identifier: Apache-2.0
"""Connects to brokers: Java's client options, TLS, kafka-python's internals, and typed errors."""
