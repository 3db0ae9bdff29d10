# SPDX-License-Identifier: Apache-2.0
"""What keeps Spark's Python processes correct and fast: pickled sources, profiles, garbage collection."""
