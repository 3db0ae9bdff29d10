# SPDX-License-Identifier: Apache-2.0
"""Options of a source: annotated attributes of a class, which are parsed from texts or typed values and checked.

```python
class Orders(SimpleSource):
    url: str = option(doc="base address")                      # required
    token: Secret = option(doc="API token; also env:NAME or file:/path")
    start: int = 10                                            # a plain default is an option too
    mode: Literal["a", "b"] = "a"
    poll_interval: Duration = option("30s", doc="pause between two polls")
    kafka: dict[str, str | Secret] = option(prefix="kafka.", doc="passed to the client")
```

Needs only the standard library. The modules of this package are private; import from the package.
"""

from __future__ import annotations

from forebay.options._kinds import resolve_annotations
from forebay.options.parsing import coerce_fields, explain_names, given_options, parse_options
from forebay.options.quantities import (
    ByteSize,
    Duration,
    DurationField,
    DurationLike,
    OptionalDurationField,
    to_seconds,
)
from forebay.options.redaction import hide_options, redact
from forebay.options.secret import REDACTED, Secret, mask_values
from forebay.options.spec import REQUIRED, OptionSpec, camel_case, class_options, merge_specs, option
from forebay.options.writing import (
    NONE_TEXT,
    changeable_options,
    changed_on_restart,
    default_text,
    fixed_options,
    format_options,
    option_values,
    redact_options,
    type_text,
    warn_of_changes,
)

__all__ = [
    "NONE_TEXT",
    "REDACTED",
    "REQUIRED",
    "ByteSize",
    "Duration",
    "DurationField",
    "DurationLike",
    "OptionSpec",
    "OptionalDurationField",
    "Secret",
    "camel_case",
    "changeable_options",
    "changed_on_restart",
    "class_options",
    "coerce_fields",
    "default_text",
    "explain_names",
    "fixed_options",
    "format_options",
    "given_options",
    "hide_options",
    "mask_values",
    "merge_specs",
    "option",
    "option_values",
    "parse_options",
    "redact",
    "redact_options",
    "resolve_annotations",
    "to_seconds",
    "type_text",
    "warn_of_changes",
]
