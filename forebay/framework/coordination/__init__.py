# SPDX-License-Identifier: Apache-2.0
"""The coordinating side: the coordinator, the context of enumerators, assignment, discovery, the life of splits."""
