# SPDX-License-Identifier: Apache-2.0
"""What a task needs: fetching ranges of offsets, and decoding keys and values."""
