"""Settings and policies: every field with its unit and the reason for its default. Pure.

`fleet.core.settings_parse` reads them from a mapping, `fleet.core.settings_file` from a file.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from fleet.core.profiles import Profile
from fleet.core.settings_admission import AdmissionSettings
from fleet.core.settings_hardware import HardwareKind, HardwareSettings, MpsPolicy, ResetMethod
from fleet.core.settings_kubernetes import Finalizing, KubernetesSettings, Unexposed
from fleet.core.settings_section import Section

__all__ = [
    "AdmissionSettings",
    "CampaignPolicy",
    "EvidencePolicy",
    "EvidenceSettings",
    "Finalizing",
    "HardwareKind",
    "HardwareSettings",
    "HealthPolicy",
    "KubernetesSettings",
    "MpsPolicy",
    "NodeSettings",
    "ResetMethod",
    "ResetPolicy",
    "RetentionMode",
    "Section",
    "Settings",
    "StoreKind",
    "StoreSettings",
    "Unexposed",
    "WipePolicy",
]

MIB = 1024 * 1024
GIB = 1024 * MIB


class ResetPolicy(StrEnum):
    """When the engine is reset around a wipe (B3)."""

    ALWAYS = "always"
    ON_FAULT = "on-fault"
    NEVER = "never"


class WipePolicy(Section):
    """How memory is wiped and when a wipe counts as failed."""

    coverage_floor: float = Field(
        default=0.98,
        gt=0,
        le=1,
        description="Fraction of (total - reserved) that must be written and verified. Contexts and"
        " fragmentation cost a real driver up to 1 %; below this a wipe fails.",
    )
    chunk_largest_bytes: int = Field(
        default=8 * GIB,
        ge=64 * 1024,
        description="First chunk size tried, bytes; halved when the allocator refuses.",
    )
    chunk_smallest_bytes: int = Field(
        default=64 * 1024,
        ge=4096,
        description="Chunk size, bytes, at which allocation ends: the smallest block drivers hand"
        " out.",
    )
    deadline_base_s: float = Field(
        default=60.0,
        gt=0,
        description="Time, s, every wipe gets for start-up and self-test.",
    )
    deadline_s_per_gib: float = Field(
        default=20.0,
        gt=0,
        description="Additional time, s, per GiB for the four passes: 20 s/GiB is 100 times slower"
        " than real memory, so that only a hang reaches it.",
    )
    expected_bytes_per_s: float = Field(
        default=200e6,
        gt=0,
        description="Slowest rate, bytes/s, expected of a healthy pass. A pass `slow_factor` times"
        " slower is a fault.",
    )
    slow_factor: float = Field(
        default=10.0,
        gt=1,
        description="How many times slower than expected is a fault. Each pass is allowed 5 s more,"
        " so that a busy host is not taken for slow memory; small devices may hide in that.",
    )
    kill_wait_s: float = Field(
        default=5.0,
        gt=0,
        description="Time, s, a killed worker has to disappear before the device counts as wedged.",
    )
    reset: ResetPolicy = Field(
        strict=False,
        default=ResetPolicy.ON_FAULT,
        description="When the engine is reset around a wipe.",
    )

    def tightened_by(self, asked: WipePolicy | None) -> WipePolicy:
        """This policy, with what `asked` demands more: an order can never demand less.

        Chunk sizes and waits are the node's own; they are no matter of strictness.
        """
        if asked is None:
            return self
        order = (ResetPolicy.NEVER, ResetPolicy.ON_FAULT, ResetPolicy.ALWAYS)
        return self.model_copy(
            update={
                "coverage_floor": max(self.coverage_floor, asked.coverage_floor),
                "deadline_base_s": min(self.deadline_base_s, asked.deadline_base_s),
                "deadline_s_per_gib": min(self.deadline_s_per_gib, asked.deadline_s_per_gib),
                "expected_bytes_per_s": max(self.expected_bytes_per_s, asked.expected_bytes_per_s),
                "slow_factor": min(self.slow_factor, asked.slow_factor),
                "reset": max(self.reset, asked.reset, key=order.index),
            }
        )


class HealthPolicy(Section):
    """When a reading is a fault."""

    sweep_period_s: float = Field(
        default=25.0,
        gt=0,
        description="Period, s, of the node's health sweep: twice within `fresh_s`, so that a"
        " verdict does not grow stale between two sweeps.",
    )
    fresh_s: float = Field(
        default=60.0, gt=0, description="Age, s, up to which a health verdict counts as fresh (B7)."
    )
    reading_timeout_s: float = Field(
        default=10.0, gt=0, description="Time, s, one accelerator has to answer a sweep."
    )
    retest_period_s: float = Field(
        default=300.0,
        gt=0,
        description="Time, s, between retests of a quarantined device whose reasons a rule may"
        " lift.",
    )
    ecc_corrected_rate_max: int = Field(
        default=10,
        ge=0,
        description="Corrected errors gained during one wipe above which the device is at fault.",
    )
    aer_corrected_rise_max: int = Field(
        default=100, ge=0, description="Corrected PCIe errors gained during one wipe allowed."
    )
    pcie_replay_rise_max: int = Field(
        default=31, ge=0, description="PCIe replays gained during one wipe allowed (gen5 x16)."
    )
    uncorrectable_remaps_max: int = Field(
        default=512, ge=0, description="Row remaps after which a device is at the end of its life."
    )
    retired_pages_max: int = Field(default=62, ge=0, description="Retired pages allowed.")
    unknown_blocks: bool = Field(
        default=True, description="Whether an unknown answer to a mandatory check is a failure."
    )


class CampaignPolicy(Section):
    """Limits of a fleet-wide scrub."""

    max_parallel: int = Field(
        default=64, ge=1, description="Devices wiped at once in the whole fleet."
    )
    max_parallel_per_node: int = Field(
        default=8, ge=1, description="Devices wiped at once on one node: all eight of a usual host."
    )
    max_parallel_per_rack: int = Field(
        default=32, ge=1, description="Devices wiped at once in one rack (power and cooling)."
    )
    pool_floor: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Fraction of a pool's healthy devices that must stay available to tenants.",
    )
    out_of_service_max: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="One budget shared by scrub, quarantine and reset: the fraction of devices of"
        " the fleet that may be out of service because of us at one time.",
    )
    out_of_service_min: int = Field(
        default=1, ge=0, description="Devices the budget always allows, so that small fleets move."
    )
    breaker_failures: int = Field(
        default=3,
        ge=1,
        description="Failures within the window from which the breaker may open.",
    )
    breaker_fraction: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Fraction of finished devices that failed, from which the breaker opens.",
    )
    breaker_window_s: float = Field(
        default=600.0, gt=0, description="Window, s, the breaker looks back."
    )
    lease_ttl_s: float = Field(
        default=60.0, gt=0, description="Lifetime, s, of a campaign lease; renewed at a third."
    )
    attempts: int = Field(
        default=2,
        ge=1,
        le=3,
        description="Wipes tried when a worker is lost. Failures are never retried: a dirty"
        " read-back that passes the second time is not a pass.",
    )
    call_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="Time, s, a call to a node may take before its fate counts as unknown and is"
        " read back.",
    )
    device_timeout_s: float = Field(
        default=3600.0,
        gt=0,
        description="Time, s, one device may take before the campaign stops waiting for it.",
    )


IDLE_DELAY_S = 30.0
"""Default of `node.idle_delay_s`."""


class NodeSettings(Section):
    """How the node service works by itself."""

    max_parallel: int = Field(
        default=8,
        ge=1,
        description="Wipes at once on the node, whoever asked: all eight devices of a usual host.",
    )
    spare_workers: int = Field(
        default=8,
        ge=0,
        description="Accelerators for which a wipe worker is kept started, where kubelet hands the"
        " devices out: it saves 0.2 s of each wipe and costs about 35 MB each.",
    )
    idle_delay_s: float = Field(
        default=IDLE_DELAY_S,
        ge=0,
        description="Time, s, after the last work of a campaign or claim in which a node wipes"
        " nothing by itself, so that they find devices free and none is wiped twice; also between"
        " two tries of one device. On an idle node a dirty device is wiped after 1 s, or after"
        " this time where it is longer than the default.",
    )
    holder_deadline_s: float = Field(
        default=600.0,
        gt=0,
        description="Time, s, a process may outlive its claim before the device is quarantined;"
        " nothing is ever killed for it.",
    )


class EvidencePolicy(StrEnum):
    """Where proof has to be before a node may go."""

    LOCAL = "local"
    REPLICATED = "replicated"


class RetentionMode(StrEnum):
    """Who may take evidence away before its time."""

    COMPLIANCE = "compliance"
    GOVERNANCE = "governance"


class UploadChecksum(StrEnum):
    """What an object is sent with, so that the service sees what was changed on its way."""

    SHA256 = "sha256"
    MD5 = "md5"
    NONE = "none"


class EvidenceSettings(Section):
    """What evidence is signed with, and where it is kept besides the node's own disk."""

    key_file: str = Field(
        default="",
        description="Path of the node's signing key, made on first use with mode 0600. Empty:"
        " inside the state directory.",
    )
    operator: str = Field(
        default="",
        max_length=200,
        description="Organisation that answers for the wipes. Stands in every certificate, as site"
        " and rack do.",
    )
    site: str = Field(default="", max_length=200, description="Site the node is at.")
    rack: str = Field(
        default="", max_length=200, description="Rack the node is in. Empty: its label `rack`."
    )
    archive: str = Field(
        default="",
        pattern=r"^(s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._=-]+)*/?)?$",
        description="Bucket and prefix, s3://bucket/prefix, that certificates, runs and"
        " countersignatures are copied to. Empty: they are on this host only.",
    )
    policy: EvidencePolicy = Field(
        strict=False,
        default=EvidencePolicy.REPLICATED,
        description="With an archive. replicated: a node is not drained before all its proof is"
        " there; wipes never wait. local: copies are made, nobody waits for them.",
    )
    region: str = Field(
        default="",
        pattern=r"^[a-z0-9-]*$",
        description="AWS region of the bucket. Empty: as AWS's own tools find it.",
    )
    endpoint: str = Field(
        default="",
        pattern=r"^(https?://\S+)?$",
        description="Address of the service, such as a VPC endpoint. Empty: AWS's own.",
    )
    retention_days: int = Field(
        default=400,
        ge=1,
        le=36500,
        description="Days for which nobody can take evidence out of the bucket: a year under audit"
        " and the month in which it is audited.",
    )
    retention_mode: RetentionMode = Field(
        strict=False,
        default=RetentionMode.COMPLIANCE,
        description="compliance: nobody can shorten that, the account's root included."
        " governance: who has a right of its own can.",
    )
    kms_key: str = Field(
        default="",
        description="KMS key that objects are encrypted with. Empty: the bucket's default.",
    )
    checksum: UploadChecksum = Field(
        strict=False,
        default=UploadChecksum.SHA256,
        description="What an object is sent with. sha256: x-amz-checksum-sha256, as S3 has it. md5:"
        " Content-MD5, for services that refuse the first. none: for services that refuse both;"
        " what was put is read back and compared in any case.",
    )
    timeout_s: float = Field(
        default=20.0,
        gt=0,
        description="Time, s, one object is tried for before the archive counts as away; it is"
        " tried again later, for as long as it takes.",
    )


class StoreKind(StrEnum):
    """Where leases and campaign runs are kept."""

    SQLITE = "sqlite"
    KUBERNETES = "kubernetes"
    DYNAMODB = "dynamodb"


class StoreSettings(Section):
    """The store of leases and campaign runs."""

    kind: StoreKind = Field(
        strict=False,
        default=StoreKind.SQLITE,
        description="sqlite: a file of one host. kubernetes: objects of the API server, for"
        " clusters. dynamodb: a table on AWS, for clusters; it outlives them.",
    )
    namespace: str = Field(
        default="fleetscrub",
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
        max_length=63,
        description="Namespace of the store's objects (kind kubernetes).",
    )
    table: str = Field(
        default="fleetscrub",
        pattern=r"^[a-zA-Z0-9_.-]{3,255}$",
        description="Name of the table (kind dynamodb); `fleet store init` makes it.",
    )
    region: str = Field(
        default="",
        pattern=r"^[a-z0-9-]*$",
        description="AWS region of the table (kind dynamodb). Empty: as AWS's own tools find it.",
    )
    endpoint: str = Field(
        default="",
        pattern=r"^(https?://\S+)?$",
        description="Address of the service (kind dynamodb), such as a VPC endpoint. Empty: AWS's"
        " own.",
    )
    hosts: int = Field(
        default=1,
        ge=1,
        description="Hosts that use the store. SQLite cannot be shared by more than one: file locks"
        " do not hold across hosts.",
    )
    timeout_s: float = Field(
        default=10.0,
        gt=0,
        description="Time, s, a call waits for the store: two orders of magnitude above a commit"
        " on a slow disk.",
    )


class Settings(Section):
    """All settings. Defaults serve one host with a simulated or a small real fleet."""

    profile: Profile = Field(
        strict=False,
        default=Profile.STRICT,
        description="Sanitization profile: strict unless somebody decides otherwise.",
    )
    wipe: WipePolicy = WipePolicy()
    health: HealthPolicy = HealthPolicy()
    campaign: CampaignPolicy = CampaignPolicy()
    node: NodeSettings = NodeSettings()
    evidence: EvidenceSettings = EvidenceSettings()
    store: StoreSettings = StoreSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    admission: AdmissionSettings = AdmissionSettings()
    hardware: HardwareSettings = HardwareSettings()
