# SPDX-License-Identifier: Apache-2.0
"""The same directories, read by Spark's own readers and listed by forebay."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.errors import ConfigurationError
from forebay.formats.values.dates import UTC
from forebay.sources.files.file_index import FileIndex, list_files
from forebay.sources.files.listing import ListOptions
from forebay.sources.files.partitions import NULL_NAME, partition_value
from forebay.stores.file_status import spark_file_name, spark_file_path
from forebay.stores.stored_file import StoredFile

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def rows_of(index: FileIndex) -> Counter[tuple[object, ...]]:
    found: Counter[tuple[object, ...]] = Counter()
    for file, values in zip(index.files, values_of(index), strict=True):
        with StoredFile(file).open() as stream:
            text = stream.read().decode()
        found.update((line, *(value.as_py() for value in values)) for line in text.splitlines())
    return found


def values_of(index: FileIndex) -> list[list[pa.Scalar]]:
    return [
        [partition_value(text, field.type, UTC) for text, field in zip(texts, index.partition_schema, strict=True)]
        for texts in index.partition_texts
    ]


def read(spark: Any, paths: list[str], **options: object) -> object:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        frame = spark.read.format("text").options(**options).load(paths)
        return frame.columns[1:], Counter(tuple(row) for row in frame.collect())
    except (PySparkException, Py4JJavaError):
        return "refused"


def listed(paths: list[str], options: ListOptions) -> object:
    try:
        index = list_files(paths, options)
    except ConfigurationError:
        return "refused"
    return index.partition_schema.names, rows_of(index)


def build(root: Path, files: Mapping[str, str]) -> str:
    base = root / uuid.uuid4().hex[:8]
    base.mkdir()
    for name, text in files.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(base)


TREES: list[list[str]] = [
    ["x", "sub/y", "sub/deep/z"],
    ["sub/y"],
    ["x", "a=1/y"],
    ["sub/x", "a=1/y"],
    ["a=1/sub/y", "a=2/z"],
    ["a=1/b=2/y", "a=2/z"],
    ["s/a=1/y", "s/a=2/y"],
    ["s/a=1/y", "r/a=2/y"],
    ["a=1/y", "b=2/y"],
    ["a=1/a=2/y"],
    [f"a={NULL_NAME}/y", "a=3/z"],
    ["a=2024-01-01/y", "a=2024-01-02/y"],
    ["a=01/y", "a=x/y", "a=1/y"],
    ["a=/y"],
    ["=1/y"],
    ["a%20b=x%2Fy/y", "a%20b=😀 =\n/y"],
    ["_x", ".y", "_m/z", "_a=1/y", "w._COPYING_"],
    ["_metadata", "ok"],
    ["_metadata_x/q", "ok"],
    ["a=1/.hidden", "b=1/x"],
    ["a=1/_metadata", "x"],
    [],
]


@pytest.mark.soak(
    but=[
        "x,sub/y,sub/deep/z",
        "x,a=1/y",
        "a=1/b=2/y,a=2/z",
        "a=1/y,b=2/y",
        "a=__HIVE_DEFAULT_PARTITION__/y,a=3/z",
        "a=01/y,a=x/y,a=1/y",
        "_metadata,ok",
        "empty",
    ]
)
@pytest.mark.parametrize("files", TREES, ids=lambda files: ",".join(files).replace("\n", "|") or "empty")
def test_a_tree_gives_sparks_rows_or_its_refusal(spark, tmp_path, files):
    root = build(tmp_path, {name: f"row of {name!r}" for name in files})
    assert listed([root], ListOptions()) == read(spark, [root])


def test_trees_that_are_searched_whole_give_sparks_rows(spark, tmp_path):
    """All trees in one read, because directories are no columns here."""
    roots = [build(tmp_path, {name: f"{number}: {name!r}" for name in files}) for number, files in enumerate(TREES)]
    columns, theirs = read(spark, roots, recursiveFileLookup=True)
    assert columns == []
    for number, root in enumerate(roots):
        wanted = Counter({row: count for row, count in theirs.items() if row[0].startswith(f"{number}: ")})
        assert listed([root], ListOptions(recursive_file_lookup=True)) == ([], wanted), TREES[number]


@pytest.mark.parametrize(
    ("paths", "options"),
    [
        (["a=*"], {}),
        (["a=*"], {"basePath": "."}),
        (["a=1"], {}),
        (["a=1", "a=2"], {"basePath": "."}),
        (["a=1/x"], {"basePath": "."}),
        (["a=1/x"], {"basePath": "a=1"}),
        (["a=1/x"], {"basePath": "a=2"}),
        (["a=1/x"], {"basePath": "a=1/x"}),
        (["a=1"], {"basePath": "nope"}),
        (["."], {"pathGlobFilter": "{x,q}"}),
        (["."], {"pathGlobFilter": "a=1/x"}),
        (["."], {"pathGlobFilter": "["}),
        ([".", "a=1"], {}),
        (["nope", "a=1"], {}),
        (["nope*"], {}),
        (["{a=1,a=2/y}"], {}),
        (["{a=1/x,a=2}"], {}),
        (["a=[^1]/*"], {}),
        (["\\a=1"], {}),
    ],
)
def test_paths_and_options_give_sparks_rows_or_its_refusal(spark, tmp_path, paths, options):
    root = build(tmp_path, {f"a={name}/{name and 'x' if name == '1' else 'y'}": f"row {name}" for name in "12"})
    full = [f"{root}/{path}" for path in paths]
    base = f"{root}/{options['basePath']}" if "basePath" in options else None
    theirs = read(spark, full, **({**options, "basePath": os.path.normpath(base)} if base else options))
    assert listed(full, ListOptions(base_path=base, path_glob_filter=options.get("pathGlobFilter"))) == theirs


def test_times_of_change_filter_as_in_spark(spark, tmp_path):
    noon = 1_717_243_200 * 10**9
    root = build(tmp_path, {str(number): f"{number}" for number in range(5)})
    for number, shift in enumerate([-1_000_000, -1, 0, 999_999, 1_000_000]):
        os.utime(f"{root}/{number}", ns=(0, noon + shift))
    for text in (
        "2024-06-01T12:00:00",
        "2024-06-01 12:00",
        "2024-06-01T14:00:00+02:00",
        "2024-6-1T12:0:0",
        "2024",
        "x",
    ):
        for name in ("modifiedAfter", "modifiedBefore"):
            after, before = (text, None) if name == "modifiedAfter" else (None, text)
            options = ListOptions(modified_after=after, modified_before=before)
            assert listed([root], options) == read(spark, [root], **{name: text}), (name, text)


def test_metadata_names_and_times_are_sparks(spark, tmp_path):
    unusual = [
        "a b",
        "emo😀",
        "p%2Fq",
        "h#x",
        "q?m",
        "br[1]",
        "cu{a}",
        "nl\nx",
        "tab\t",
        "bs\\x",
        "pl+us",
        "am&p;=,@$!'()~",
    ]
    unusual += [
        "é",
        "e\u0301",
        "nb\u00a0",
        "ls\u2028",
        "c1\u0085",
        "zw\u200b",
        'q"<>^`|',
        "del\x7f",
        "bom\ufeff",
        "x*y",
    ]
    root = build(tmp_path, dict.fromkeys(unusual, "x"))
    frame = spark.read.text(root).selectExpr(
        "_metadata.file_path", "_metadata.file_name", "unix_millis(_metadata.file_modification_time)"
    )
    files = list_files([root]).files
    assert len(files) == len(unusual)
    mine = {(spark_file_path(file.path), spark_file_name(file.path), file.modified_ms) for file in files}
    assert mine == {tuple(row) for row in frame.collect()}


GLOB_NAMES = ["a", "b", "ab", "a.b", "a,b", "[a]", "{a}", "a*", "-", "^a", "a b", "é", ".h", "]", "!", "a\nb", "\\"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pattern=st.one_of(
        st.text(alphabet="ab*?[]{},\\^!-. é\n", min_size=1, max_size=7),
        st.sampled_from(
            ["[!-a]", "{a,{b,a.b}}*", "*{a,b}", "\\[a\\]", "[]a]*", "{[ab],\\{a\\}}", "a{,b}", "[^-]", "?*"]
        ),
    )
)
def test_any_glob_finds_what_hadoop_finds(spark, globbed, pattern):
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if questionable(pattern):
        return
    path = spark._jvm.org.apache.hadoop.fs.Path(f"{globbed}/{pattern}")
    try:
        statuses = path.getFileSystem(spark._jsc.hadoopConfiguration()).globStatus(path)
        theirs = sorted(status.getPath().getName() for status in statuses or [])
    except (PySparkException, Py4JJavaError):
        theirs = []
    try:
        mine = sorted(file.name for file in list_files([f"{globbed}/{pattern}"]).files)
    except ConfigurationError:
        mine = []
    assert mine == [name for name in theirs if not name.startswith(".")]


def questionable(pattern: str) -> bool:
    """Patterns whose meaning comes from Hadoop's regular expression: in brackets, and letters after a backslash."""
    if any(left == "\\" and right.isalnum() for left, right in itertools.pairwise(pattern)):
        return True
    inside = False
    for char in pattern:
        if inside and char in "*?{},[\\^!-":
            return True
        inside = (inside or char == "[") and char != "]"
    return pattern.replace("\\", "") in (".", "..") or "[]" in pattern


@pytest.fixture(scope="session")
def globbed(tmp_path_factory):
    return build(tmp_path_factory.mktemp("globs"), dict.fromkeys(GLOB_NAMES, ""))


def test_the_calendar_of_dates_is_sparks(spark, tmp_path):
    days = ["0001-01-01", "1582-10-04", "1582-10-15", "1969-12-31", "2024-02-29"]
    root = build(tmp_path, {f"d={day}/x": "row" for day in days})
    theirs = {row[0] for row in spark.read.text(root).selectExpr("unix_date(d)").collect()}
    index = list_files([root])
    assert theirs == {int(values[0].cast(pa.int32()).as_py()) for values in values_of(index)}
    assert dt.date(2024, 2, 29) in {values[0].as_py() for values in values_of(index)}
