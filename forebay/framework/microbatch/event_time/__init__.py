# SPDX-License-Identifier: Apache-2.0
"""Event time in a stream's planner: how far each split may be read so that none runs ahead of the slowest one."""
