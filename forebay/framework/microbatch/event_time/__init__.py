# SPDX-License-Identifier: Apache-2.0
"""Event time in the planner of a stream: how far each split may be read so that none runs ahead of the slowest one."""
