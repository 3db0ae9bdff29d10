# SPDX-License-Identifier: Apache-2.0
"""The parts that run in a task: a `SourceReader`, its context, and its output."""
