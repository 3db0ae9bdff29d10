# SPDX-License-Identifier: Apache-2.0
"""Listing S3: forebay beside boto3's bare paginator, on answers that a script makes. No server takes part.

Both parse the same answers of 1,000 keys in XML. The CPU time of the script is subtracted; the elapsed time includes
it. With `--latency` each answer takes that long, as those of a distant store do.

Run it: ``make bench BENCH=s3_listing``, with more keys by ``BENCH_ARGS='--keys 1000000'``.
"""

from __future__ import annotations

import argparse
import bisect
import io
import resource
import time
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit
from xml.sax.saxutils import escape

import boto3
from botocore.awsrequest import AWSResponse

from forebay.sources.files import FileSource
from forebay.stores.s3 import store
from forebay.stores.s3.client import client_of
from forebay.stores.store import StorageOptions
from forebay.text_tables import text_table

_ENDPOINT = "http://127.0.0.1:9"
_OPTIONS = StorageOptions({"key": "k", "secret": "s", "endpoint_url": _ENDPOINT, "region": "us-east-1"})
_OBJECT = (
    "<Contents><Key>{}</Key><LastModified>2024-06-01T12:00:00.000Z</LastModified>"
    "<ETag>&quot;{:032x}&quot;</ETag><Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


def _key(index: int) -> str:
    directory, number = divmod(index, 1000)
    return f"lake/events/day={directory:06}/part-{number:05}-4f0c1b52-93b7-4f0e-8d43-{index:012}.c000.parquet"


class _Body(io.BytesIO):
    def stream(self, **_: object) -> Any:  # noqa: ANN401 - as botocore wants it
        yield self.read()


class Answers:
    """Answers requests of one boto3 client from a script. `busy` is the CPU time of that."""

    def __init__(self, count: int, latency: float) -> None:
        self.keys = range(count)
        self.latency = latency
        self.requests = 0
        self.busy = 0.0

    def __call__(self, request: Any, **_: object) -> AWSResponse:  # noqa: ANN401 - botocore has no types
        began = time.thread_time()
        self.requests += 1
        body = b"" if request.method == "HEAD" else self._page(parse_qs(urlsplit(request.url).query)).encode()
        status = 404 if request.method == "HEAD" else 200
        self.busy += time.thread_time() - began
        time.sleep(self.latency)
        return AWSResponse(request.url, status, {"Content-Type": "application/xml"}, _Body(body))

    def _before(self, key: str) -> int:
        return bisect.bisect_left(self.keys, key, key=_key)

    def _page(self, query: dict[str, list[str]]) -> str:
        asked = {name: values[0] for name, values in query.items()}
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        after = asked.get("continuation-token") or asked.get("start-after", "")
        start = max(self._before(prefix), bisect.bisect_right(self.keys, after, key=_key))
        end = self._before(prefix + "\U0010ffff")
        parts: list[str] = []
        last = ""
        while start < end and len(parts) < int(asked.get("max-keys", 1000)):
            key = _key(start)
            name, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if slash:
                parts.append(
                    f"<CommonPrefixes><Prefix>{escape(quote(prefix + name + slash))}</Prefix></CommonPrefixes>"
                )
                last = f"{prefix}{name}{slash}\U0010ffff"
                start = self._before(last)
            else:
                parts.append(_OBJECT.format(quote(key), start, 100_000 + start))
                last, start = key, start + 1
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{escape(last)}</NextContinuationToken>"
        head = "<ListBucketResult><EncodingType>url</EncodingType>"
        return f"{head}{''.join(parts)}{more if start < end else '<IsTruncated>false</IsTruncated>'}</ListBucketResult>"


def bare(client: Any) -> int:  # noqa: ANN401 - boto3 has no types
    """Count the keys by boto3's paginator, which does nothing with them."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix="lake/events/")
    return sum(len(page.get("Contents", ())) for page in pages)


def ours(_: Any) -> int:  # noqa: ANN401 - as above
    """Count the files by the file source: with partition values, sorted, without hidden names."""
    return len(FileSource(path="s3://bucket/lake/events", file_format="parquet").list().files)


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--latency", type=float, nargs="*", default=[0.0, 0.1], help="seconds of an answer")
    given = parser.parse_args()
    client = client_of(_OPTIONS)
    plain = boto3.client(
        "s3",
        endpoint_url=_ENDPOINT,
        region_name="us-east-1",
        aws_access_key_id="k",
        aws_secret_access_key="s",
    )
    setattr(store, "client_of", lambda _: client)  # noqa: B010 - the store is given the scripted client
    rows = []
    for latency in given.latency:
        answers = Answers(given.keys, latency)
        for each in (client.boto, plain):
            each.meta.events.register("before-send.s3", answers, unique_id="script")
        for name, run in [("boto3's paginator", bare), ("forebay_files", ours)] * given.repeats:
            answers.requests, answers.busy = 0, 0.0
            began, cpu = time.perf_counter(), time.process_time()
            if run(plain) != given.keys:
                raise SystemExit(f"{name} did not find all keys")
            per = given.keys / 100_000
            seconds, spent = (time.perf_counter() - began) / per, (time.process_time() - cpu - answers.busy) / per
            rows.append((name, f"{latency:g}", f"{seconds:.2f}", f"{spent:.2f}", str(answers.requests)))
        for each in (client.boto, plain):
            each.meta.events.unregister("before-send.s3", unique_id="script")
    titles = ("listed by", "latency in s", "s per 100,000 keys", "of it CPU without the script", "requests")
    print(text_table(titles, sorted(rows, key=lambda row: (row[1], row[0]))))
    print(f"peak memory of all: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB")


if __name__ == "__main__":
    main()
