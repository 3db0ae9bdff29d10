# SPDX-License-Identifier: Apache-2.0
"""Commits DataFrames and streams to the datasources of an object type (`forebay.index`)."""
