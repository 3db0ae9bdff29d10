# SPDX-License-Identifier: Apache-2.0
"""What the enumerator needs: subscription, start and end offsets, deleted and recreated topics, task ranges."""
