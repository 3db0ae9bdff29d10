# SPDX-License-Identifier: Apache-2.0
"""The coordinating side: coordinator, enumerator context, assignment, discovery, the life cycle of splits."""
