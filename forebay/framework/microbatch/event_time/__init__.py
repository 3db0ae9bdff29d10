# SPDX-License-Identifier: Apache-2.0
"""Event time in the planner of a stream: limits how far splits are read, so that none runs far ahead of the slowest."""
