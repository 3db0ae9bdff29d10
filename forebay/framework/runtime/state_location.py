# SPDX-License-Identifier: Apache-2.0
"""The state store of a stream: at `stateLocation`, or by default in the checkpoint directory (S13, S18)."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from forebay.framework.runtime.host_options import HostOptions

# Stores are imported where one is named: most reads have none.
if TYPE_CHECKING:
    from forebay.state.state_store import StateStore


def state_store(options: HostOptions) -> StateStore | None:
    """Return the store at `stateLocation`; None if the option is not set. Does no I/O.

    Raises:
        ConfigurationError: The file system of `stateLocation` cannot keep state, boto3 is missing for S3, or an option
            that begins with `stateStorage` is unknown.
    """
    if options.state_location is None:
        return None
    from forebay.state.open_state_store import open_state_store

    return open_state_store(options.state_location, options.state_storage)


def default_location(checkpoints: str | None) -> str | None:
    """Return the default `stateLocation`: a directory in `checkpoints`, the session's checkpoint directory.

    None if there is no such directory, its file system cannot keep state, or boto3 is missing for S3.
    """
    if not checkpoints:
        return None
    from forebay.state.open_state_store import can_keep_state, scheme_of

    if not can_keep_state(checkpoints):
        return None
    if scheme_of(checkpoints).startswith("s3") and importlib.util.find_spec("boto3") is None:
        return None
    return f"{checkpoints.rstrip('/')}/_forebay"
