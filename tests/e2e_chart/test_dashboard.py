"""The dashboard of the head, reached as docs/install.md says: with its token, and not without."""

from __future__ import annotations

import base64
import http.client
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e_chart.installation import RELEASE, Installation

pytestmark = pytest.mark.timeout(600)
TOLD = ("/nodes?view=summary", "/api/jobs/", "/api/v0/actors", "/api/cluster_status")
"""Pages that tell, or do, something of the cluster."""
JOB = b'{"entrypoint": "true"}'


@contextmanager
def forwarded(installation: Installation) -> Iterator[int]:
    """The command of docs/install.md; the port of this machine that leads to the dashboard."""
    words = ["kubectl", "--kubeconfig", str(installation.place.kubeconfig)]
    words += [
        "--namespace",
        "fleetscrub",
        "port-forward",
        f"deployment/{RELEASE}-ray-head",
        ":8265",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+) -> 8265", said)
            assert found, said
            yield int(found[1])
        finally:
            process.terminate()


def answer(port: int, path: str, token: str = "", body: bytes | None = None) -> int:
    """The status of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request("GET" if body is None else "POST", path, body=body, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_dashboard_is_behind_its_token(installation: Installation) -> None:
    """With the token of the Secret every page of the dashboard answers; without it, or with
    another one, none tells anything and no job is taken."""
    said = installation.kubectl(
        "get", "secret", f"{RELEASE}-ray-token", "--output", "jsonpath={.data.token}"
    )
    token = base64.b64decode(said).decode()
    with forwarded(installation) as port:
        for path in TOLD:
            assert answer(port, path, token) == 200, path
            assert answer(port, path) == 401, path
            assert answer(port, path, token[::-1]) == 403, path
        assert answer(port, "/api/jobs/", body=JOB) == 401
        assert answer(port, "/api/jobs/", token[::-1], body=JOB) == 403
