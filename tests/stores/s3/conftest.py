# SPDX-License-Identifier: Apache-2.0
"""A bucket on a real server, and one on moto for what the real servers lack."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from s3_servers import Bucket, S3Server, bucket_of, bucket_of_moto


@pytest.fixture(scope="session")
def served(s3_server: S3Server) -> Iterator[Bucket]:
    with bucket_of(s3_server) as bucket:
        yield bucket


@pytest.fixture
def bucket(served: Bucket) -> Iterator[Bucket]:
    yield from served.emptied()


@pytest.fixture(scope="session")
def served_by_moto() -> Iterator[Bucket]:
    with bucket_of_moto() as bucket:
        yield bucket


@pytest.fixture
def moto_bucket(served_by_moto: Bucket) -> Iterator[Bucket]:
    yield from served_by_moto.emptied()
