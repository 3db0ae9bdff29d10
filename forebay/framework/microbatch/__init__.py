# SPDX-License-Identifier: Apache-2.0
"""What a host needs that reads in tasks; knows no engine.

`bounded` plans a read that ends; `streaming` plans the micro-batches of a query, from what `proven` knows to be done.
`opening` puts that together. What they plan is made of `supply` (where splits come from), `portions` (how much, and who
reads it), `offsets` (what is written down), `agreement` (ends that nobody knows beforehand) and `tasks` (what runs
elsewhere).
"""
