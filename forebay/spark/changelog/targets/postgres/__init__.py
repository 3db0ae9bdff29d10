# SPDX-License-Identifier: Apache-2.0
"""A table of PostgreSQL as a target: staged by COPY on executors, merged in one transaction."""
