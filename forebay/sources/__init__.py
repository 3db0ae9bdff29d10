# SPDX-License-Identifier: Apache-2.0
"""The sources that come with forebay, one folder or module each."""
