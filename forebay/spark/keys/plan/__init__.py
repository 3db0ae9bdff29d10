# SPDX-License-Identifier: Apache-2.0
"""The analysed plan of a DataFrame as plain objects."""
