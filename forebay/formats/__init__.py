# SPDX-License-Identifier: Apache-2.0
"""Bytes of files to Arrow record batches: one module per format, and what text-like formats share."""
