# SPDX-License-Identifier: Apache-2.0
"""Targets: tables and archives that hold the rows of a changelog. Each micro-batch is written exactly once."""
