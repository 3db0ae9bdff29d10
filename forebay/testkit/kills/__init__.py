# SPDX-License-Identifier: Apache-2.0
"""Kills processes of a streaming query at named points, and shows whether its rows still arrived exactly once.

```python
class KillableOrders(Killable, Orders): ...          # the source under test, with kill points

kills = KillList(directory)
kills.arm(Kill("plan-ends", "jvm", at=3), Kill("read-middle"))
files = MicroBatchFiles(f"{directory}/rows", kills)  # the sink: frame.writeStream.foreachBatch(files)
restart_until_done(start, kills)                     # calls start() again after each kill that ended the query
assert kills.armed() == [] and sorted(files.rows()) == sorted(undisturbed.rows())
```
"""

from __future__ import annotations

from forebay.testkit.kills.killable import Killable
from forebay.testkit.kills.killable_state import killable_state
from forebay.testkit.kills.points import POINTS, STATE_POINTS, Kill, KillList
from forebay.testkit.kills.restarting import MicroBatchFiles, restart_until_done, run_until_done

__all__ = [
    "POINTS",
    "STATE_POINTS",
    "Kill",
    "KillList",
    "Killable",
    "MicroBatchFiles",
    "killable_state",
    "restart_until_done",
    "run_until_done",
]
