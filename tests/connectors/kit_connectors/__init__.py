# SPDX-License-Identifier: Apache-2.0
"""Correct connectors, and broken ones, with which the conformance kit is judged."""
