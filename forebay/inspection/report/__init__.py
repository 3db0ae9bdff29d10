# SPDX-License-Identifier: Apache-2.0
"""`forebay.report`: the history of a streaming query as one HTML file."""
