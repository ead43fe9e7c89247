"""The archive in the life of a node: away for a while, and killed in the middle of a drain."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fleet.control.repair.drain import drain, settled
from fleet.core.settings import EvidenceSettings
from fleet.evidence import archived
from fleet.evidence.verify import verify
from tests.cloud import draining
from tests.cloud.archives import certificates, doubled
from tests.cloud.buckets import make_bucket, opened
from tests.cloud.lossy import Lossy
from tests.cloud.server import REGION, CloudServer
from tests.fleet.evidence.samples import Site
from tests.fleet.node.conftest import Lab, lab, wait_for

__all__ = ["lab"]


@pytest.fixture(name="port")
def free_port() -> int:
    """A port at which nobody answers yet."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_b27_scrubs_go_on_while_the_archive_is_down(
    cloud: CloudServer, lab: Lab, port: int
) -> None:
    """B27, E5: nothing waits for S3; what was certified meanwhile is copied once it is back.

    A drain of the node says what is missing until then, and with S3 back waits for it.
    """
    bucket = make_bucket(cloud.endpoint)
    evidence = EvidenceSettings(
        archive=f"s3://{bucket}/fleet",
        region=REGION,
        endpoint=f"http://127.0.0.1:{port}",
        timeout_s=0.2,
    )
    lab.restart(settings=lab.settings.model_copy(update={"evidence": evidence}))
    for name in ("gpu-0", "gpu-1"):
        assert lab.scrub(name).certificate
    now = lab.node._registry.clock.now()
    lab.node.tick(now)
    wait_for(lambda: bool(lab.node.view().replication.error))  # type: ignore[union-attr]
    done = drain(lab.node, detail="scale down", operator="tester")
    assert done.uncopied == 2
    assert "did not" in done.uncopied_because

    with Lossy(cloud.port, listen=port):

        def pause() -> bool:
            lab.node.tick(now + 600.0)
            copies = lab.node._parts.replicator
            assert copies is not None
            assert copies._thread is not None
            copies._thread.join(30.0)
            return True

        done = settled(lab.node, done, pause=pause)
    assert (done.uncopied, done.uncopied_because) == (0, "")
    archive = opened(cloud.endpoint, bucket)
    report = verify(archived.collect(archive))
    assert (report.certificates, report.defects) == (2, [])
    assert doubled(archive) == []


def test_b62_killed_in_the_middle_of_a_drain(cloud: CloudServer, tmp_path: Path) -> None:
    """B62, promise 7: SIGKILL between certificate and row; the successor finishes, nothing twice.

    The long version is ``python -m tests.stress_archive``.
    """
    site = Site(tmp_path)
    site.certify("node-1", rounds=2)
    bucket = make_bucket(cloud.endpoint)
    draining.killed(tmp_path, "node-1", endpoint=cloud.endpoint, bucket=bucket, after=9)
    archive = opened(cloud.endpoint, bucket)
    assert 0 < certificates(archive) < 4
    assert verify(archived.collect(archive)).ok, "what is there so far verifies"
    assert draining.drain(archive, tmp_path, "node-1", dies_after=0) == ""
    report = verify(archived.collect(archive))
    assert (report.certificates, report.defects) == (4, [])
    assert doubled(archive) == []
