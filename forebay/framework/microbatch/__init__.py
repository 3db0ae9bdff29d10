# SPDX-License-Identifier: Apache-2.0
"""What a host needs that reads in tasks: plan ahead, pack, and read one task. Knows no engine."""
