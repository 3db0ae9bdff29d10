# SPDX-License-Identifier: Apache-2.0
"""The contract of sources, one role per file, and the parts that all hosts share."""
