"""Where everything of a storm is, and the settings under which its nodes run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet.core.profiles import Profile
from fleet.core.settings import MIB
from fleet.core.settings_file import load
from fleet.evidence import layout
from fleet.wiring import adapters
from fleet.wiring.adapters import NodePlan
from fleet.wiring.plans import plan_fleet
from tests.chaos.life import MARKER
from tests.chaos.plain import hardware, strike_slow
from tests.chaos.storm.hosts import Disk
from tests.cloud.server import CREDENTIALS, REGION

DEVICES = 2
"""Of each node."""
TABLE = "leases"
BYTES_PER_S = 6_000_000
"""Speed of the memory: a wipe of 1 MiB takes more than half a second, so that faults meet it."""
POLICY = """\
profile = "{profile}"
[kubernetes]
kubelet_root = "{root}/kubelet/{node}"
cdi_directory = "{root}/disks/{node}/cdi"
cgroup_root = "{root}/cgroup/{node}"
budget_s = 8.0
publish_period_s = 0.3
resync_period_s = 10.0
api_qps = 200.0
api_timeout_s = 5.0
binding_timeout_s = 120.0
[node]
idle_delay_s = 1.0
spare_workers = 1
holder_deadline_s = 90.0
[health]
sweep_period_s = 5.0
reading_timeout_s = 4.0
retest_period_s = 10.0
[wipe]
deadline_base_s = 30.0
expected_bytes_per_s = 100000.0
[campaign]
lease_ttl_s = 20.0
breaker_failures = 1000
call_timeout_s = 10.0
device_timeout_s = 90.0
[store]
kind = "dynamodb"
table = "{table}"
region = "{region}"
endpoint = "{cloud}"
timeout_s = 6.0
[evidence]
archive = "s3://{bucket}/fleet"
region = "{region}"
endpoint = "{cloud}"
retention_days = 1
timeout_s = 6.0
"""


@dataclass(frozen=True)
class Place:
    """One node's part of a storm."""

    root: Path
    node: str
    profile: Profile = Profile.STRICT

    @property
    def disk(self) -> Disk:
        """The small disk with the node's state and its CDI directory."""
        return Disk(self.root / "disks" / self.node)

    @property
    def state(self) -> Path:
        """State directory of the node."""
        return self.disk.directory / "state"

    @property
    def directory(self) -> Path:
        """The node's own part of it."""
        return layout.node_directory(self.state, self.node)

    @property
    def policy(self) -> Path:
        """Settings file."""
        return self.root / f"{self.node}.toml"

    @property
    def kubelet(self) -> Path:
        """Root of its kubelet."""
        return self.root / "kubelet" / self.node

    @property
    def cgroups(self) -> Path:
        """Root of its cgroups."""
        return self.root / "cgroup" / self.node

    @property
    def log(self) -> Path:
        """What its plugin and the plugin's children say."""
        return self.root / f"{self.node}.log"

    def make(self, *, cloud: str, bucket: str) -> NodePlan:
        """All files; its simulated memory is not on the small disk. The plan."""
        self.disk.make()
        (self.disk.directory / "cdi").mkdir()
        for name in ("plugins", "plugins_registry"):
            (self.kubelet / name).mkdir(parents=True)
        self.policy.write_text(
            POLICY.format(
                root=self.root,
                node=self.node,
                profile=self.profile,
                cloud=cloud,
                bucket=bucket,
                table=TABLE,
                region=REGION,
            )
        )
        memory = self.root / "memory" / self.node
        memory.mkdir(parents=True)
        self.directory.mkdir(parents=True)
        (self.directory / "sim").symlink_to(memory)
        plan = plan_fleet(
            self.state,
            simulate=f"1x{DEVICES}",
            memory_bytes=MIB,
            settings=load(self.policy),
            serve=self.node,
        ).nodes[0]
        strike_slow(hardware(plan), bytes_per_s=BYTES_PER_S)
        return plan

    def owner(self) -> int:
        """Pid of whoever holds the journal's lock by its own word; 0 for nobody."""
        try:
            return int(json.loads((self.directory / adapters.LOCK).read_text())["pid"])
        except (OSError, ValueError, KeyError):
            return 0


def environment(root: Path) -> Mapping[str, str]:
    """What every process of a storm has in its environment besides."""
    return {MARKER: str(root), **CREDENTIALS, "PYTHONFAULTHANDLER": "1"}
