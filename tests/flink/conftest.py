# SPDX-License-Identifier: Apache-2.0
"""Flink's SinkUpsertMaterializer as a function of cases; one JVM judges all of a call."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from changelogs.reference import Change
from changelogs.seeded import Judged, parsed
from flink_jars import FlinkProgram, javac

Flink = Callable[[Sequence[Judged]], list[list[list[Change]]]]
"""What Flink emitted for each case, after each change."""


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Flink:
    if javac() is None:
        pytest.skip("a JDK compiles the program that runs Flink's operator (apt install openjdk-17-jdk-headless)")
    work = tmp_path_factory.mktemp("flink")
    program = FlinkProgram(Path(__file__).with_name("SinkMaterializerJudge.java"), work)

    def judge(cases: Sequence[Judged]) -> list[list[list[Change]]]:
        lines = "".join(f"{json.dumps(case.to_json())}\n" for case in cases)
        (work / "cases.jsonl").write_text(lines, encoding="utf-8")
        program.run(work / "cases.jsonl", work / "results.jsonl", options=["-XX:+UseSerialGC"])
        answers = (work / "results.jsonl").read_text(encoding="utf-8").splitlines()
        return [parsed(json.loads(answer), case) for answer, case in zip(answers, cases, strict=True)]

    return judge
