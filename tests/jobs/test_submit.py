"""A campaign as a submitted job, as far as it needs no Ray."""

from __future__ import annotations

import shlex

import pytest
from ray.job_submission import JobDetails, JobStatus, JobType

from fleet.core import errors
from jobs import submit


def details(status: JobStatus, code: int | None) -> JobDetails:
    """What the job server tells of an ended job."""
    return JobDetails(type=JobType.SUBMISSION, status=status, entrypoint="x", driver_exit_code=code)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (JobStatus.SUCCEEDED, 0, 0),
        (JobStatus.FAILED, 1, 1),
        (JobStatus.FAILED, 2, 2),
        (JobStatus.FAILED, None, 2),
        (JobStatus.STOPPED, None, 2),
    ],
)
def test_the_driver_s_exit_code_is_the_command_s(
    status: JobStatus, code: int | None, expected: int
) -> None:
    """A submitted campaign ends with its own exit code; one that never ran could not run."""
    assert submit.exit_code(details(status, code)) == expected


def test_arguments_survive_the_job_s_shell() -> None:
    """The entrypoint is a shell line: spaces and quotes of arguments arrive unchanged."""
    arguments = ["--select", "product~H200 *", "--operator", "O'Neil; rm -rf /"]
    assert shlex.split(submit.entrypoint(arguments)) == [
        "python",
        "-P",
        "-m",
        "jobs.scrub",
        *arguments,
    ]


def test_the_document_is_found_at_the_end_of_the_log() -> None:
    """With --json the document is taken out of a log that also has progress lines."""
    log = 'gathering {"x"} ...\nnode-0/gpu-0: certified\n{\n  "run": "r1",\n  "a": {\n  }\n}\nbye\n'
    assert submit.document(log) == '{\n  "run": "r1",\n  "a": {\n  }\n}\n'
    assert submit.document("no document\n") == ""


def test_submission_ids_carry_the_date_and_differ() -> None:
    """A submission id sorts by time and is not used twice."""
    first, second = submit.submission_id(0.0), submit.submission_id(0.0)
    assert first.startswith("scrub-19700101-000000-")
    assert first != second


class Server:
    """A job server that refuses so many times in these words."""

    def __init__(self, refusals: int, words: str) -> None:
        self.refusals, self.words = refusals, words
        self.metadata: dict[str, str] = {}

    def submit_job(self, *, entrypoint: str, submission_id: str, metadata: dict[str, str]) -> str:
        """Refuse, or take it."""
        if self.refusals:
            self.refusals -= 1
            raise RuntimeError(f"Request failed with status code 500: {self.words}")
        assert entrypoint.endswith("--address auto")
        self.metadata = metadata
        return submission_id


def test_a_ray_that_has_just_started_is_waited_for() -> None:
    """E4: without an agent nothing was submitted; the job then has its name in the dashboard."""
    server, pauses = Server(3, f"{submit.NO_AGENT} to submit job"), list[float]()
    submit.submit(server, "job-1", [], pause=pauses.append)
    assert len(pauses) == 3
    assert server.metadata["job_name"] == "fleet scrub"


def test_what_cannot_be_submitted_says_why() -> None:
    """A used id is the caller's mistake and is not repeated; an agent that never comes is Ray's."""
    pauses: list[float] = []
    with pytest.raises(errors.InputInvalid, match="already exists"):
        submit.submit(Server(1, "already exists"), "job-1", [], pause=pauses.append)
    assert pauses == []
    with pytest.raises(errors.RayUnavailable, match=submit.NO_AGENT):
        submit.submit(Server(10_000, submit.NO_AGENT), "job-1", [], pause=pauses.append)
    assert sum(pauses) < submit.AGENT_MAX_S
