# SPDX-License-Identifier: Apache-2.0
"""Where splits come from: an author's discovery (`supply`), or an enumerator of FLIP-27's own kind.

The latter is `assigned`, and sees one virtual reader (`planning`).
"""
