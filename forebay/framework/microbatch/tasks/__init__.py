# SPDX-License-Identifier: Apache-2.0
"""What runs in a task: a `SourceReader`, its context, and its output."""
