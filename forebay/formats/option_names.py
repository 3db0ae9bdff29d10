# SPDX-License-Identifier: Apache-2.0
"""Names of the options of text formats as users write them, and the error for a value that cannot be honoured."""

from __future__ import annotations

from forebay.errors import ConfigurationError


def option_name(field: str) -> str:
    """The name of an option as users write it: `null_value` → `nullValue`."""
    head, *rest = field.split("_")
    spelled = {"Ntz": "NTZ"}
    return head + "".join(spelled.get(word.capitalize(), word.capitalize()) for word in rest)


def wrong_option(file_format: str, field: str, why: str) -> ConfigurationError:
    """The error for an option of a format, given by the name of its field."""
    return ConfigurationError(
        f"the option {option_name(field)} of the {file_format} format cannot be used like this: {why}",
        option=option_name(field),
        advice=f"change the option, or read with Spark's own {file_format} reader",
    )
