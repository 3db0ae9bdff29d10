# SPDX-License-Identifier: Apache-2.0
"""The parts of a read that run in a task: an open `SourceReader`, its context, and its output."""
