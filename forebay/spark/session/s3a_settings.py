# SPDX-License-Identifier: Apache-2.0
"""The settings of Hadoop's S3 connector in a Spark session, which planners and tasks cannot read (S18)."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import SparkSession

from forebay.errors import ConfigurationError
from forebay.options import Secret

_PREFIX: Final = "fs.s3a."
_SPARK: Final = "spark.hadoop."
# Looked up in Hadoop's configuration too, where programs and core-site.xml set them.
_IN_HADOOP: Final = (
    "access.key", "secret.key", "session.token", "endpoint", "endpoint.region", "path.style.access",
    "connection.ssl.enabled", "aws.credentials.provider", "assumed.role.arn", "assumed.role.session.name",
    "assumed.role.external.id", "assumed.role.sts.endpoint", "requester.pays.enabled", "encryption.algorithm",
    "proxy.host", "security.credential.provider.path",
)  # fmt: skip
_DEFAULTS: Final = "core-default.xml"
_BETWEEN: Final = "\0\n"


def s3a_settings(spark: SparkSession, context: Any) -> dict[str, Secret]:  # noqa: ANN401 - None over Spark Connect
    """Return the `fs.s3a.*` settings that are not Hadoop's defaults. Called on the driver, by `register` and `read`.

    The values are secrets, because they may be credentials. Over Spark Connect, only settings of the session are
    visible.
    """
    found: dict[str, str] = {}
    java = getattr(context, "_jsc", None)
    if java is not None:
        hadoop = java.hadoopConfiguration()
        for name in (f"{_PREFIX}{short}" for short in _IN_HADOOP):
            value = hadoop.get(name)
            if value and _DEFAULTS not in list(hadoop.getPropertySources(name) or ()):
                found[name] = value
    for name, value in _settings(spark).items():
        plain = name.removeprefix(_SPARK)
        if plain.startswith(_PREFIX) and (plain == name or plain not in found):
            found[plain] = value
    return {name: secret for name, value in found.items() if (secret := _secret(value)) is not None}


def _settings(spark: SparkSession) -> dict[str, str]:
    """Return all settings of the session, with one call of the JVM. `spark.conf.getAll` makes several for each."""
    java = getattr(spark.conf, "_jconf", None)
    if java is None:  # Spark Connect
        return spark.conf.getAll
    pairs = java.getAll().mkString(_BETWEEN).split(_BETWEEN)  # each is "name -> value"
    return {name: value for name, _, value in (pair.partition(" -> ") for pair in pairs)}


def _secret(text: str) -> Secret | None:
    try:
        return Secret(text)
    except ConfigurationError:  # it looks like a reference to a secret but is not valid: no setting of Hadoop
        return None
