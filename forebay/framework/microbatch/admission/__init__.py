# SPDX-License-Identifier: Apache-2.0
"""How much a micro-batch reads, and who reads it.

`reach` says how far splits go now, `backlog` is what there is of them, `admission` keeps limits, `packing` and
`tasking` cut what was taken, and spread it over tasks.
"""
