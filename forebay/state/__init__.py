# SPDX-License-Identifier: Apache-2.0
"""Small durable facts: local directories and S3, written by put-if-absent."""
