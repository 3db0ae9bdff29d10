# SPDX-License-Identifier: Apache-2.0
"""A client of S3 that lists any number of keys and stores none: a scripted bucket."""

from __future__ import annotations

import bisect
import datetime as dt
import threading
from collections.abc import Sequence
from typing import Any, overload

from forebay.stores.s3.settings import S3Settings

PER_DIRECTORY = 1000
START = dt.datetime(2024, 6, 1, tzinfo=dt.UTC)


class Keys(Sequence[str]):
    """Sorted keys of about 90 characters, in directories of 1,000, made when they are looked at."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._count))]
        directory, number = divmod(index, PER_DIRECTORY)
        return f"lake/events/day={directory:06}/part-{number:05}-4f0c1b52-93b7-4f0e-8d43-{index:012}.c000.parquet"


class ScriptedLister:
    """Answers `list_objects_v2` and `head_object` as S3 would. Counts requests."""

    def __init__(self, count: int) -> None:
        self.keys = Keys(count)
        self.settings = S3Settings()
        self.requests = 0
        self._lock = threading.Lock()

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        with self._lock:
            self.requests += 1
        if operation == "head_object":
            from botocore.exceptions import ClientError

            raise ClientError({"Error": {"Code": "404"}, "ResponseMetadata": {"HTTPStatusCode": 404}}, "HeadObject")
        assert operation == "list_objects_v2"
        return self._page(**arguments)

    def _page(
        self,
        Bucket: str,  # noqa: N803 - boto3's names
        Prefix: str,  # noqa: N803
        MaxKeys: int,  # noqa: N803
        StartAfter: str = "",  # noqa: N803
        Delimiter: str = "",  # noqa: N803
        ContinuationToken: str = "",  # noqa: N803
    ) -> dict[str, Any]:
        after = ContinuationToken or StartAfter
        start = max(bisect.bisect_left(self.keys, Prefix), bisect.bisect_right(self.keys, after))
        end = bisect.bisect_left(self.keys, Prefix + "\U0010ffff")
        objects: list[dict[str, Any]] = []
        prefixes: list[dict[str, str]] = []
        last = ""
        while start < end and len(objects) + len(prefixes) < MaxKeys:
            key = self.keys[start]
            below, slash, _ = key[len(Prefix) :].partition(Delimiter) if Delimiter else (key, "", "")
            if slash:
                prefixes.append({"Prefix": f"{Prefix}{below}{slash}"})
                last = f"{Prefix}{below}{slash}\U0010ffff"
                start = bisect.bisect_left(self.keys, last)
            else:
                objects.append(self._object(start, key))
                last, start = key, start + 1
        more = {"IsTruncated": True, "NextContinuationToken": last} if start < end else {"IsTruncated": False}
        return {"Contents": objects, "CommonPrefixes": prefixes, **more}

    def _object(self, index: int, key: str) -> dict[str, Any]:
        moment = START + dt.timedelta(seconds=index)
        return {"Key": key, "Size": 100_000 + index, "LastModified": moment, "ETag": f'"{index:032x}"'}
