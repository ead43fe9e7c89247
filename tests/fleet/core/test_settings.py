"""Every default, pinned: a change of one is a decision, not an accident."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fleet.core.settings import Section, Settings, WipePolicy
from fleet.core.settings_parse import SECTIONS

DEFAULTS = {
    "profile": "strict",
    "wipe": {
        "coverage_floor": 0.98,
        "chunk_largest_bytes": 8 * 2**30,
        "chunk_smallest_bytes": 64 * 2**10,
        "deadline_base_s": 60.0,
        "deadline_s_per_gib": 20.0,
        "expected_bytes_per_s": 200e6,
        "slow_factor": 10.0,
        "kill_wait_s": 5.0,
        "reset": "on-fault",
    },
    "health": {
        "sweep_period_s": 25.0,
        "fresh_s": 60.0,
        "reading_timeout_s": 10.0,
        "retest_period_s": 300.0,
        "ecc_corrected_rate_max": 10,
        "aer_corrected_rise_max": 100,
        "pcie_replay_rise_max": 31,
        "uncorrectable_remaps_max": 512,
        "retired_pages_max": 62,
        "unknown_blocks": True,
    },
    "campaign": {
        "max_parallel": 64,
        "max_parallel_per_node": 8,
        "max_parallel_per_rack": 32,
        "pool_floor": 0.0,
        "out_of_service_max": 1.0,
        "out_of_service_min": 1,
        "breaker_failures": 3,
        "breaker_fraction": 0.5,
        "breaker_window_s": 600.0,
        "lease_ttl_s": 60.0,
        "attempts": 2,
        "call_timeout_s": 30.0,
        "device_timeout_s": 3600.0,
    },
    "node": {
        "max_parallel": 8,
        "spare_workers": 8,
        "idle_delay_s": 30.0,
        "holder_deadline_s": 600.0,
    },
    "evidence": {
        "checksum": "sha256",
        "operator": "",
        "rack": "",
        "site": "",
        "key_file": "",
        "archive": "",
        "policy": "replicated",
        "region": "",
        "endpoint": "",
        "retention_days": 400,
        "retention_mode": "compliance",
        "kms_key": "",
        "timeout_s": 20.0,
    },
    "admission": {"required": False, "tag_keys": "", "tag_roots": []},
    "store": {
        "kind": "sqlite",
        "namespace": "fleetscrub",
        "table": "fleetscrub",
        "region": "",
        "endpoint": "",
        "hosts": 1,
        "timeout_s": 10.0,
    },
    "hardware": {
        "kind": "auto",
        "root": "/",
        "run_directory": "/run/fleetscrub",
        "kernel_log": "/dev/kmsg",
        "mps": "refuse",
        "mps_deadline_s": 20.0,
        "reset_methods": ["flr", "device_specific"],
        "reset_tool": "nvidia-smi",
        "host_readback": True,
        "partition_retries": 5,
        "accept_unread": False,
    },
    "kubernetes": {
        "driver": "gpu.fleetscrub.dev",
        "cdi_vendor": "fleetscrub.dev",
        "cdi_class": "gpu",
        "cdi_directory": "/var/run/cdi",
        "kubelet_root": "/var/lib/kubelet",
        "cgroup_root": "/sys/fs/cgroup",
        "agent_namespace": "",
        "api_qps": 20.0,
        "api_timeout_s": 10.0,
        "budget_s": 40.0,
        "binding_timeout_s": 600.0,
        "hold_event_after_s": 900.0,
        "unexposed": "taint",
        "preflight": "warn",
        "admin_namespaces": [],
        "finalizer": "with-hold",
        "coordinator_qps": 100.0,
        "coordinator_nodes": [],
        "lost_after_s": 3600.0,
        "publish_period_s": 1.0,
        "resync_period_s": 30.0,
    },
}


def test_every_default_is_pinned() -> None:
    """All defaults, none left out."""
    assert Settings().model_dump(mode="json") == DEFAULTS


@pytest.mark.parametrize("kind", [Settings, *SECTIONS.values()])
def test_every_field_says_why(kind: type[Section]) -> None:
    """A field without a reason, or a quantity of time without its unit, is not accepted."""
    for name, field in kind.model_fields.items():
        if name in SECTIONS:
            continue
        assert field.description, name
        if name.endswith("_s") and not name.endswith("per_s"):
            assert "s" in field.description.replace(",", "").split(), name


def test_settings_are_closed_and_do_not_change() -> None:
    """No unknown key slips in, and no value is changed after it was judged."""
    with pytest.raises(ValidationError, match="Extra inputs"):
        WipePolicy.model_validate({"atempts": 1})
    with pytest.raises(ValidationError, match="frozen"):
        setattr(WipePolicy(), "slow_factor", 3)  # noqa: B010 - a plain assignment fails mypy


@pytest.mark.parametrize(
    "given",
    [
        {"health": {"unknown_blocks": "no"}},
        {"health": {"unknown_blocks": 1}},
        {"wipe": {"coverage_floor": "0.98"}},
        {"campaign": {"attempts": True}},
        {"campaign": {"max_parallel": 2.0}},
    ],
)
def test_types_are_not_guessed(given: dict[str, object]) -> None:
    """A quoted "no" never turns a safety check off: what is not of the type is an error."""
    with pytest.raises(ValidationError):
        Settings.model_validate(given)


def test_infinity_is_no_deadline() -> None:
    """B6: every deadline is finite."""
    with pytest.raises(ValidationError, match="finite"):
        WipePolicy(deadline_base_s=float("inf"))
