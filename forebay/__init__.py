# SPDX-License-Identifier: Apache-2.0
"""Write a data source once; run it on Spark, or in one Python process.

This module has all public names, imported on first use: `import forebay` loads neither pyarrow nor an extra, so that
a search node (`forebay.index.SearchNode`) does not load them either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.errors import (
    ConfigurationError,
    ContractError,
    DataError,
    DataLossError,
    FatalError,
    ForebayError,
    RetriableError,
    unwrap,
)
from forebay.lazy_names import lazy_names
from forebay.options import ByteSize, Duration, Secret, option
from forebay.version import __version__

if TYPE_CHECKING:
    from forebay import testkit as testkit
    from forebay.framework.arrow.row_packer import Batch as Batch
    from forebay.framework.discovery import Discovered as Discovered
    from forebay.framework.discovery import DiscoveryEnumerator as DiscoveryEnumerator
    from forebay.framework.discovery import KnownSplits as KnownSplits
    from forebay.framework.enumerator import SourceEvent as SourceEvent
    from forebay.framework.enumerator import SplitEnumerator as SplitEnumerator
    from forebay.framework.enumerator import SplitEnumeratorContext as SplitEnumeratorContext
    from forebay.framework.inprocess import Run as Run
    from forebay.framework.inprocess import run as run
    from forebay.framework.reader import InputStatus as InputStatus
    from forebay.framework.reader import ReaderOutput as ReaderOutput
    from forebay.framework.reader import SourceReader as SourceReader
    from forebay.framework.reader import SourceReaderContext as SourceReaderContext
    from forebay.framework.reading.source_reader import SourceReaderBase as SourceReaderBase
    from forebay.framework.runtime.clients import cached as cached
    from forebay.framework.runtime.clients import discard as discard
    from forebay.framework.runtime.connector_errors import http_errors as http_errors
    from forebay.framework.runtime.host_options import HostOptions as HostOptions
    from forebay.framework.simple import SimpleSource as SimpleSource
    from forebay.framework.source import Source as Source
    from forebay.framework.split import Position as Position
    from forebay.framework.split import Split as Split
    from forebay.framework.split_reader import Fetched as Fetched
    from forebay.framework.split_reader import SplitReader as SplitReader
    from forebay.inspection.describe import Peek as Peek
    from forebay.inspection.describe import describe as describe
    from forebay.inspection.describe import peek as peek
    from forebay.inspection.metrics import record_metrics as record_metrics
    from forebay.inspection.offsets import offsets as offsets
    from forebay.inspection.progress import progress as progress
    from forebay.inspection.report import report as report
    from forebay.sources.files import FileSource as FileSource
    from forebay.sources.hybrid import HybridSource as HybridSource
    from forebay.sources.kafka import KafkaSource as KafkaSource
    from forebay.sources.rate import RateSource as RateSource
    from forebay.spark.register import read as read
    from forebay.spark.register import read_stream as read_stream
    from forebay.spark.register import record_progress as record_progress
    from forebay.spark.register import register as register
    from forebay.watermarks.strategy import WatermarkStrategy as WatermarkStrategy

_LAZY = {
    "Batch": "forebay.framework.arrow.row_packer",
    "Discovered": "forebay.framework.discovery",
    "DiscoveryEnumerator": "forebay.framework.discovery",
    "Fetched": "forebay.framework.split_reader",
    "FileSource": "forebay.sources.files",
    "HostOptions": "forebay.framework.runtime.host_options",
    "HybridSource": "forebay.sources.hybrid",
    "InputStatus": "forebay.framework.reader",
    "KafkaSource": "forebay.sources.kafka",
    "KnownSplits": "forebay.framework.discovery",
    "Peek": "forebay.inspection.describe",
    "Position": "forebay.framework.split",
    "RateSource": "forebay.sources.rate",
    "ReaderOutput": "forebay.framework.reader",
    "Run": "forebay.framework.inprocess",
    "SimpleSource": "forebay.framework.simple",
    "Source": "forebay.framework.source",
    "SourceEvent": "forebay.framework.enumerator",
    "SourceReader": "forebay.framework.reader",
    "SourceReaderBase": "forebay.framework.reading.source_reader",
    "SourceReaderContext": "forebay.framework.reader",
    "Split": "forebay.framework.split",
    "SplitEnumerator": "forebay.framework.enumerator",
    "SplitEnumeratorContext": "forebay.framework.enumerator",
    "SplitReader": "forebay.framework.split_reader",
    "WatermarkStrategy": "forebay.watermarks.strategy",
    "cached": "forebay.framework.runtime.clients",
    "describe": "forebay.inspection.describe",
    "discard": "forebay.framework.runtime.clients",
    "http_errors": "forebay.framework.runtime.connector_errors",
    "offsets": "forebay.inspection.offsets",
    "peek": "forebay.inspection.describe",
    "progress": "forebay.inspection.progress",
    "read": "forebay.spark.register",
    "read_stream": "forebay.spark.register",
    "record_metrics": "forebay.inspection.metrics",
    "record_progress": "forebay.spark.register",
    "register": "forebay.spark.register",
    "report": "forebay.inspection.report",
    "run": "forebay.framework.inprocess",
    "testkit": "forebay.testkit",
}

__all__ = [
    "Batch",
    "ByteSize",
    "ConfigurationError",
    "ContractError",
    "DataError",
    "DataLossError",
    "Discovered",
    "DiscoveryEnumerator",
    "Duration",
    "FatalError",
    "Fetched",
    "FileSource",
    "ForebayError",
    "HostOptions",
    "HybridSource",
    "InputStatus",
    "KafkaSource",
    "KnownSplits",
    "Peek",
    "Position",
    "RateSource",
    "ReaderOutput",
    "RetriableError",
    "Run",
    "Secret",
    "SimpleSource",
    "Source",
    "SourceEvent",
    "SourceReader",
    "SourceReaderBase",
    "SourceReaderContext",
    "Split",
    "SplitEnumerator",
    "SplitEnumeratorContext",
    "SplitReader",
    "WatermarkStrategy",
    "__version__",
    "cached",
    "describe",
    "discard",
    "http_errors",
    "offsets",
    "option",
    "peek",
    "progress",
    "read",
    "read_stream",
    "record_metrics",
    "record_progress",
    "register",
    "report",
    "run",
    "testkit",
    "unwrap",
]

__getattr__, __dir__ = lazy_names("forebay", _LAZY, __all__, {"pyspark": "spark"})
