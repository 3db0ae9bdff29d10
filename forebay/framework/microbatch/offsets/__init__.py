# SPDX-License-Identifier: Apache-2.0
"""What a stream writes down: offsets, what they remember, and where what is too long for them is kept.

`offset` is one micro-batch as JSON; `done` is the memory of splits that ended. A `book` writes both: all of it in the
offset, or (`stored_book`) partly in `segments` below `stateLocation`, which `state` opens. `compact` writes long lists
small.
"""
