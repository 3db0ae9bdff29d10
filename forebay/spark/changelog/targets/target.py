# SPDX-License-Identifier: Apache-2.0
"""What all targets are: they apply the changes of a micro-batch exactly once by (query, micro-batch)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from pyspark.sql import Column, DataFrame

from forebay.errors import ConfigurationError, unwrap
from forebay.spark.changelog.targets.changes import ChangeOptions, Changes, fold_changes


class Target(ABC):
    """Where the rows of a changelog are kept. `apply_changes` writes a whole stream to it, `apply` one micro-batch."""

    def apply(  # noqa: PLR0913 - keywords of a function for users
        self,
        df: DataFrame,
        batch_id: int,
        query_id: str,
        *,
        keys: str | Sequence[str],
        sequence_by: str | Column | None = None,
        apply_as_deletes: str | Column | None = None,
        except_column_list: Sequence[str] = (),
        stored_as_scd_type: Literal[1, 2, "1", "2"] = 1,
        null_keys: Literal["error", "drop"] = "error",
        adopt: bool = False,
    ) -> bool:
        """Apply the changes of one micro-batch, unless they are applied already. Called in `foreachBatch`.

        Args:
            df: The micro-batch.
            batch_id: Its number, which grows within a query.
            query_id: The id of the query, the same after each restart (`StreamingQuery.id`).
            keys: See `apply_changes`, as for all arguments that follow.
            sequence_by: See there.
            apply_as_deletes: See there.
            except_column_list: See there.
            stored_as_scd_type: See there.
            null_keys: See there.
            adopt: See there.

        Returns:
            Whether the changes were applied; False for a micro-batch that was applied before.

        Raises:
            ConfigurationError: The arguments or the target do not fit the changes, or another query wrote the target.
            DataError: A change cannot be applied: its key is NULL, its order is unknown, a value does not fit.
            RetriableError: The target does not answer.
        """
        if df.isStreaming:
            raise ConfigurationError(
                "apply takes one micro-batch", advice="call it in foreachBatch, or call apply_changes with the stream"
            )
        options = ChangeOptions(keys, sequence_by, apply_as_deletes, except_column_list, stored_as_scd_type, null_keys)
        changes = fold_changes(df, options)
        try:
            return self._apply(changes, batch_id, query_id, adopt=adopt)
        except Exception as error:
            found = unwrap(error)
            if found is None or found is error:
                raise
            raise found from error

    @abstractmethod
    def _apply(self, changes: Changes, batch_id: int, query_id: str, *, adopt: bool) -> bool:
        """Write the changes and the micro-batch in one step; return False if the micro-batch was written before."""


def check_owner(target: str, owner: str | None, query_id: str, *, adopt: bool) -> None:
    """Refuse a query that is not the one that wrote the target.

    Args:
        target: What the error calls the target.
        owner: The query that wrote it last, or None.
        query_id: The query that is about to write.
        adopt: Whether this query takes the target over.

    Raises:
        ConfigurationError: Another query wrote the target.
    """
    if owner is None or owner == query_id or adopt:
        return
    raise ConfigurationError(
        f"{target} was written by the query {owner}, and this is the query {query_id}",
        option="adopt",
        advice="continue with the checkpoint of that query; to let this one take over, stop the other one and start "
        "this one with adopt=True",
    )
