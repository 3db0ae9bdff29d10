# SPDX-License-Identifier: Apache-2.0
"""What sources need of a Spark session, captured where the session is known, and checks of its workers."""
