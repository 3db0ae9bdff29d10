# SPDX-License-Identifier: Apache-2.0
"""The options of the Kafka source, and what they mean. No broker is asked."""
