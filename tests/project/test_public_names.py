# SPDX-License-Identifier: Apache-2.0
"""The list of public names: none is removed or changed without a decision (CONTRIBUTING.md, Stability)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIST = HERE.parent / "golden" / "data" / "public_names.txt"


@pytest.fixture(scope="module")
def now() -> set[str]:
    # In another process: here, other tests have registered sources of their own.
    done = subprocess.run([sys.executable, "-P", HERE / "public_names.py"], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def test_no_public_name_is_gone_or_has_other_parameters(now):
    gone = set(LIST.read_text().splitlines()) - now
    assert gone == set(), "deprecate them first (CONTRIBUTING.md, Stability); then run `make public-names`"


def test_new_public_names_are_on_the_list(now):
    new = now - set(LIST.read_text().splitlines())
    assert new == set(), "if they are to be public, run `make public-names`, and commit the list"


def test_the_list_has_doors_classes_methods_and_options(now):
    assert {
        "forebay.read(spark, source, *, schema=, **options)",
        "forebay.Source.with_columns(self, columns)",
        "forebay.ForebayError",
        "forebay.HostOptions.max_files_per_trigger",
        "option forebay_files fileFormat",
        "option * maxFilesPerTrigger",
        "forebay.testkit.check(source, *, seconds=, seed=, rules=, stored=)",
    } <= now
