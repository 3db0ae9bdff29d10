# SPDX-License-Identifier: Apache-2.0
"""Where bytes and small durable facts live: listings, readable files, atomic writes."""
