# SPDX-License-Identifier: Apache-2.0
"""Stores small durable facts, such as claims and segments, in local directories or on S3, each written once."""
