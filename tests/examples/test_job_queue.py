# SPDX-License-Identifier: Apache-2.0
"""The queue of jobs with its own enumerator keeps the contract; each job comes once, also in a later run."""

from __future__ import annotations

import pytest
from job_queue import JobQueue, add_job  # see conftest.py

import forebay
from forebay import ConfigurationError
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.testkit import check


@pytest.fixture
def queue(tmp_path):
    """Gives the path of a queue with four jobs, one of them empty."""
    for count in (7, 0, 12, 5):
        add_job(tmp_path / "queue.db", [f"item {n}" for n in range(count)])
    return tmp_path / "queue.db"


def test_jobs_of_killed_readers_and_of_checkpoints_come_once(queue):
    rules = ["ENU-3", "ENU-5", "ENU-11", "SR-2"]
    assert not check(JobQueue(path=str(queue), page_rows=3), rules=rules).rules("failed")


@pytest.mark.soak
def test_the_queue_keeps_the_contract(queue):
    assert check(JobQueue(path=str(queue), page_rows=3)).verdict == "passed"


@pytest.mark.parametrize("parallelism", [1, 3])
def test_each_job_is_read_once_and_later_ones_by_a_later_run(queue, tmp_path, parallelism):
    rows = []
    for expected in (24, 4, 0):
        with forebay.run(
            JobQueue(path=str(queue), page_rows=3),
            parallelism=parallelism,
            checkpoint=str(tmp_path / "state"),
            until_caught_up=True,
        ) as batches:
            came = batches.to_table().to_pylist()
        assert len(came) == expected
        rows += came
        if expected == 24:
            add_job(queue, ["late"] * 4)
    assert len({(row["job"], row["n"]) for row in rows}) == 28


def test_a_bounded_read_of_a_queue_that_polls_for_ever_is_refused_at_once(queue):
    """Not after planningTimeout; so is check_on_spark."""
    with pytest.raises(ConfigurationError, match="did not call signal_no_more_splits") as caught:
        plan_bounded(JobQueue(path=str(queue)), forebay.HostOptions(planning_timeout="20s"))
    assert "context.reads_once is True" in str(caught.value.advice)
