# SPDX-License-Identifier: Apache-2.0
"""S3 and compatible stores through boto3: clients per process, listings, pinned reads, conditional deletes."""
