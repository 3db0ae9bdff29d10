# SPDX-License-Identifier: Apache-2.0
"""The options of the Kafka source, and their validation. Nothing here connects to a broker."""
