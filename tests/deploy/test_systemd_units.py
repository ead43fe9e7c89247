"""All units for bare metal: only keys that systemd knows, only commands that the product takes.

systemd itself ignores a key it does not know, with a line in its log that nobody reads.
"""

from __future__ import annotations

import re
import shlex

import pytest

from tests.deploy.chart import commands
from tests.deploy.manifests import ROOT

UNITS = sorted((ROOT / "systemd").iterdir())
_SECTION = re.compile(r"^\[(\w+)\]$")
SEVERAL = {"Environment", "EnvironmentFile", "ExecStart", "Documentation"}
"""Keys that may stand in a section more than once."""
EXECUTION = {
    *("Environment", "EnvironmentFile", "ExecStart", "KillMode", "LockPersonality"),
    *("NoNewPrivileges", "ProtectControlGroups", "ProtectHome", "ProtectKernelModules"),
    *(
        "PrivateTmp",
        "ProtectSystem",
        "Restart",
        "RestartSec",
        "RestrictAddressFamilies",
        "RuntimeDirectory",
    ),
    *("RuntimeDirectoryMode", "RuntimeDirectoryPreserve", "StateDirectory"),
    *("StateDirectoryMode", "TimeoutStartSec", "TimeoutStopSec", "Type", "UMask"),
}
KNOWN = {
    "Unit": {
        *(
            "After",
            "Before",
            "ConditionPathExists",
            "Description",
            "Documentation",
            "JoinsNamespaceOf",
        ),
        *("StartLimitIntervalSec", "Wants"),
    },
    "Service": EXECUTION,
    "Timer": {"AccuracySec", "OnCalendar", "Persistent", "RandomizedDelaySec", "Unit"},
    "Install": {"WantedBy"},
}
"""Section and key names, as systemd.unit(5), .service(5), .exec(5), .kill(5) and .timer(5)."""
GIVEN = {
    "FLEET_PLAN": "/var/lib/fleetscrub/nodes/node-1/plan.json",
    "RAY_HEAD": "ray-head:6379",
    "FLEET_HOST": "node-1",
    "FLEET_OPTIONS": "--node node-1 --profile fast",
    "FLEET_SCRUB_OPTIONS": "--select pool=a --max-parallel 2",
}
"""What the environment files say."""


def sections(name: str) -> dict[str, list[tuple[str, str]]]:
    """(key, value) by section; what is neither comment, section nor assignment is an error."""
    found: dict[str, list[tuple[str, str]]] = {}
    current = None
    for line in (ROOT / "systemd" / name).read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if section := _SECTION.match(line):
            assert section[1] not in found, f"{name}: [{section[1]}] stands twice"
            current = found.setdefault(section[1], [])
            continue
        key, equals, value = line.partition("=")
        assert equals, f"{name}: {line!r} is no assignment"
        assert current is not None, f"{name}: {line!r} is in no section"
        current.append((key, value))
    return found


def command(name: str) -> list[str]:
    """The command line, as systemd makes it: ${X} is one word, $X is as many as it has."""
    ((_, line),) = [one for one in sections(name)["Service"] if one[0] == "ExecStart"]
    line = re.sub(r"\$\{(\w+)\}", lambda found: GIVEN[found[1]], line)
    words = shlex.split(re.sub(r"\$(\w+)", lambda found: GIVEN[found[1]], line))
    return [words[0].removeprefix("/usr/local/bin/"), *words[1:]]


SERVICES = [path.name for path in UNITS if path.suffix == ".service"]


@pytest.mark.parametrize("name", [path.name for path in UNITS])
def test_every_key_is_one_of_systemds(name: str) -> None:
    """E6: a misspelt key would be ignored, and the unit run without what it says."""
    for section, pairs in sections(name).items():
        keys = [key for key, _ in pairs]
        assert set(keys) <= KNOWN[section], name
        twice = {key for key in keys if keys.count(key) > 1}
        assert twice <= SEVERAL, name
        assert all(value for _, value in pairs), name


@pytest.mark.parametrize("name", SERVICES)
def test_every_command_is_taken(name: str) -> None:
    """E6: each command line parses with the program's own parser."""
    assert commands.parsed(command(name))


def test_the_timer_does_what_the_cron_job_does() -> None:
    """E6: it starts the campaign that a node without Kubernetes can run alone; a missed night is
    made up for; real devices are confirmed for the record, under a name."""
    timer = dict(sections("fleet-scrub.timer")["Timer"])
    assert timer["Unit"] in SERVICES
    assert timer["Persistent"] == "true"
    asked = commands.parsed(command("fleet-scrub.service"))
    assert asked["verb"] == "fleet scrub"
    assert (asked["yes"], asked["operator"], asked["address"]) == (True, "systemd", None)
    service = dict(sections("fleet-scrub.service")["Service"])
    assert service["Type"] == "oneshot"
    assert "Restart" not in service, "what was found would be scrubbed again, for ever"


def test_all_services_share_state_and_witness() -> None:
    """A witness that went with one unit's end would set the other's journal aside."""
    for name in SERVICES:
        found = dict(sections(name)["Service"])
        assert found["StateDirectory"] == found["RuntimeDirectory"] == "fleetscrub"
        assert found["RuntimeDirectoryPreserve"] == "yes"
        assert found["KillMode"] == "mixed"
        assert found["UMask"] == "0077"


def test_f63_rays_sockets_lie_where_no_other_user_gets() -> None:
    """F63: Ray's session directories are open to everybody, and /tmp of each unit is its own; who
    attaches to the raylet of the host has the same one."""
    for name in (unit.name for unit in UNITS if unit.suffix == ".service"):
        found = sections(name)
        assert dict(found["Service"])["PrivateTmp"] == "yes", name
        if name != "fleet-ray-worker.service":
            assert dict(found["Unit"])["JoinsNamespaceOf"] == "fleet-ray-worker.service", name


def test_raylets_authenticate() -> None:
    """Ray without its token is code execution for anybody who reaches it."""
    values = [value for _, value in sections("fleet-ray-worker.service")["Service"]]
    assert "RAY_AUTH_MODE=token" in values
    asked = commands.parsed(command("fleet-ray-worker.service"))
    assert (asked["labels"], asked["block"]) == ("fleet/host=node-1", True)
