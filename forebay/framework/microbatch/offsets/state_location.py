# SPDX-License-Identifier: Apache-2.0
"""Where a stream keeps what is too long for its offsets: as the options say, or beside the checkpoints (S13, S18)."""

from __future__ import annotations

import importlib.util
from typing import Final

from forebay.framework.host_options import HostOptions
from forebay.state.open_state_store import can_keep_state, open_state_store, scheme_of
from forebay.state.state_store import StateStore

_BESIDE: Final = "_forebay"


def state_store(options: HostOptions) -> StateStore | None:
    """Return the store that `stateLocation` names; None if it is not given. Looks at nothing outside yet.

    Called when a query starts, and by tasks.

    Raises:
        ConfigurationError: It can keep no state, boto3 is not installed, or a `stateStorage` option is unknown.
    """
    if options.state_location is None:
        return None
    settings = {name: secret.reveal() for name, secret in options.state_storage.items()}
    return open_state_store(options.state_location, settings)


def default_location(checkpoints: str | None) -> str | None:
    """Return the `stateLocation` of a query that names none; None where the place of its checkpoints can keep no state.

    Called by a host when it reads the options.

    Args:
        checkpoints: The directory below which the session keeps the checkpoints of its queries, if it says one.
    """
    if not checkpoints or not can_keep_state(checkpoints):
        return None
    if scheme_of(checkpoints).startswith("s3") and importlib.util.find_spec("boto3") is None:
        return None
    return f"{checkpoints.rstrip('/')}/{_BESIDE}"
