# SPDX-License-Identifier: Apache-2.0
"""What runs in a task: its slices, read to their ends by a `SourceReader`."""
