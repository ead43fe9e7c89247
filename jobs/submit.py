"""A campaign as a submitted Ray job: submit once, follow its log, take over its exit code.

Through the SDK, not the command line of Ray: that one takes four times as long and loses the exit
code. The submission id carries the date, so that a scheduler's second attempt on the same night is
refused by Ray instead of scrubbing twice.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import aiohttp
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from fleet.cli.text import visible
from fleet.core import errors

POLL_S = 0.5
NAME = "fleet scrub"
"""What the dashboard's column Name shows: Ray takes it from the key job_name."""
AGENT_MAX_S = 60.0
"""Time, s, a Ray that was just started has to have an agent that runs jobs."""
NO_AGENT = "No available agent"
"""How Ray says so (2.60), with 500; nothing was submitted then."""
TERMINAL = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED})


def submission_id(now: float) -> str:
    """An id that sorts by time: ``scrub-20261129-144900-3f2a``."""
    return f"scrub-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(2)}"


def entrypoint(arguments: Sequence[str]) -> str:
    """The job's shell line. The cluster's own Python runs it, with this package installed there."""
    return shlex.join(["python", "-P", "-m", "jobs.scrub", *arguments])


def run(
    address: str, arguments: Sequence[str], *, sink: Callable[[str], None], name: str = ""
) -> int:
    """Submit, follow, and return the exit code of the job's driver.

    `sink` gets the log in pieces as it grows. `name` is the submission id to use. Raises
    `RayUnavailable` when the job server cannot be reached, `InputInvalid` when the id was used.
    """
    job = name or submission_id(time.time())
    try:
        client = JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, AuthenticationError) as error:
        raise errors.RayUnavailable(
            f"the job server at {address} does not answer: {str(error).splitlines()[0]}",
            remedy="check the address (the dashboard's, port 8265) and RAY_AUTH_TOKEN_PATH",
        ) from error
    submit(client, job, arguments)
    sys.stderr.write(f"job {job} submitted to {visible(address)}\n")
    try:
        asyncio.run(_follow(client, job, sink))
    except KeyboardInterrupt:
        # The job stops in order and its run can be resumed; it is waited for below.
        client.stop_job(job)
    except (RuntimeError, aiohttp.ClientError) as error:
        sys.stderr.write(f"the log broke off ({visible(str(error))}); waiting for the job\n")
    return exit_code(_ended(client, job))


class Client(Protocol):
    """What is needed of `JobSubmissionClient` to submit."""

    def submit_job(
        self, *, entrypoint: str, submission_id: str, metadata: dict[str, str]
    ) -> str: ...


def submit(
    client: Client,
    job: str,
    arguments: Sequence[str],
    *,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Submit once. A Ray that has just started has no agent to run a job yet: that is waited out.

    Raises `InputInvalid` when the job is refused, `RayUnavailable` when no agent comes.
    """
    tries = round(AGENT_MAX_S / POLL_S)
    for number in range(tries):
        try:
            client.submit_job(
                entrypoint=entrypoint([*arguments, "--address", "auto"]),
                submission_id=job,
                metadata={"program": "fleetscrub", "job_name": NAME},
            )
        except RuntimeError as error:
            said = str(error).splitlines()[0]
            if NO_AGENT not in said:
                raise errors.InputInvalid(
                    f"job {job} was not accepted: {said}",
                    remedy="a submission id is used once; look at the job that has it",
                ) from error
            if number + 1 == tries:
                raise errors.RayUnavailable(f"job {job}: {said}") from error
            pause(POLL_S)
        else:
            return


def exit_code(details: JobDetails) -> int:
    """The driver's exit code; 2 where the job never ran one."""
    if details.driver_exit_code is not None:
        return int(details.driver_exit_code)
    return 0 if details.status == JobStatus.SUCCEEDED else 2


def document(log: str) -> str:
    """The JSON document at the end of a job's log; "" when there is none."""
    lines = log.splitlines()
    starts = [number for number, line in enumerate(lines) if line == "{"]
    if not starts:
        return ""
    body = lines[starts[-1] :]
    ends = [number for number, line in enumerate(body) if line == "}"]
    return "\n".join(body[: ends[0] + 1]) + "\n" if ends else ""


async def _follow(client: JobSubmissionClient, job: str, sink: Callable[[str], None]) -> None:
    async for lines in client.tail_job_logs(job):
        sink(lines)


def _ended(client: JobSubmissionClient, job: str) -> JobDetails:
    while True:
        details = client.get_job_info(job)
        if details.status in TERMINAL:
            return details
        time.sleep(POLL_S)
