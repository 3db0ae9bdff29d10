# SPDX-License-Identifier: Apache-2.0
"""Messages between an enumerator and its readers."""

from __future__ import annotations


class SourceEvent:
    """A message of the source's own between its enumerator and its readers (EVT-1).

    Subclass it, frozen and picklable. Sent by `SplitEnumeratorContext.send_event_to_reader` and
    `SourceReaderContext.send_source_event`; events and assignments to one reader keep their order (CTX-10).
    Works on the in-process host; on Spark, which has no such channel, sending one is refused by name.
    """
