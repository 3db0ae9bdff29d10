# SPDX-License-Identifier: Apache-2.0
"""How much a micro-batch reads: available ranges, limits, and the tasks that read them."""
