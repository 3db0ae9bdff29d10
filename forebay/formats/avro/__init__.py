# SPDX-License-Identifier: Apache-2.0
"""Reads Avro object container files. Other folders use `format.AvroFormat` and `format.AvroOptions`."""
