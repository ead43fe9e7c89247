"""Every error the product raises on purpose: one tree, each message with its remedy.

Whether a caller may try again is in the type (`Retryable`, `Permanent`), never in the text. The
exit code of a command follows from the type too. All classes survive pickling, so that an
``except`` clause written for a local call matches the same error raised in another process (B60).

Decisions:

1. `FleetError` takes exactly what it shows: ``detail`` (what is wrong, with the facts) and
   ``remedy`` (what to do). What code reads (a floor, a holder) are keyword fields.
2. Errors of libraries never leave the module that owns the library: they are converted there.
3. Texts that name other tenants (their claims, processes, operations) are for operators. Whoever
   raises one gives the field ``told`` too: it is what reaches the owner of the claim.
4. Classes are named after the fact (`LeaseHeld`), not after being an error.
"""

from __future__ import annotations

from typing import Any, ClassVar

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
"""What reading a document of the wrong shape may raise, whoever wrote it: a number beyond a float
is an OverflowError, depth a RecursionError."""


class FleetError(Exception):
    """Root of the tree. ``str(error)`` is detail and remedy, fit for a terminal or an event."""

    exit_code: ClassVar[int] = 2
    default_remedy: ClassVar[str] = "see `fleet status` and the log of the node service"

    def __init__(self, detail: str, *, remedy: str = "", **fields: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.remedy = remedy or self.default_remedy
        self.fields = fields

    @property
    def told(self) -> str:
        """What the owner of a claim may read, in events and conditions: as ``str``, with the field
        ``told`` for the detail where that names claims or processes of others."""
        return f"{self.fields.get('told') or self.detail} — {self.remedy}"

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.detail, self.remedy, self.fields))

    def __str__(self) -> str:
        return f"{self.detail} — {self.remedy}"


def _rebuild(
    kind: type[FleetError], detail: str, remedy: str, fields: dict[str, Any]
) -> FleetError:
    return kind(detail, remedy=remedy, **fields)


class Retryable(FleetError):
    """The same call may succeed later without anybody deciding anything."""

    default_remedy = "retry; the work goes on meanwhile"


class Permanent(FleetError):
    """Repeating the call changes nothing: somebody has to decide or to repair."""


# --- settings and input ----------------------------------------------------


class SettingsInvalid(Permanent):
    """One or more settings are wrong; ``problems`` lists all of them."""

    default_remedy = "correct the fields named and run again"


class InputInvalid(Permanent):
    """An argument, selector, file or message cannot be understood."""

    default_remedy = "correct the argument named and run again"


# --- state tables ----------------------------------------------------------


class IllegalTransition(Permanent):
    """The tables have no row for this event in this state; nothing was changed."""

    default_remedy = (
        "nothing was changed; if a person asked for it, wait until the state named has passed"
    )


# --- leases ----------------------------------------------------------------


class LeaseHeld(Retryable):
    """Another holder has one of the units; nothing was acquired. Fields: ``unit``, ``holder``."""

    default_remedy = "wait until its holder releases it, or exclude the device"


class LeaseLost(Retryable):
    """The lease named is not held any more (expired, released or superseded)."""

    default_remedy = "acquire again; what was done under the old lease counts for hygiene only"


class TokenStale(Permanent):
    """An act's token is below the node's floor; nothing was changed. Fields: ``floor``."""

    default_remedy = "read the state again and acquire a new lease; somebody newer has acted"


class TokenUnknown(Permanent):
    """An act carries a token the store never issued; nothing was changed. Field: ``newest``."""

    default_remedy = "acquire a lease and use its token"


class EpochForeign(Permanent):
    """A token comes from an epoch this node does not follow. Fields: ``ours``, ``theirs``."""

    default_remedy = "check that node and store belong together, then run `fleet store adopt`"


class StoreBehind(Permanent):
    """The lease store is older than what a node has seen (restored backup); it grants nothing."""

    default_remedy = "run `fleet store adopt` once no other copy of the store is in use"


class StoreUnavailable(Retryable):
    """The lease or run store did not answer in time."""

    default_remedy = "retry; nothing was granted"


class CloudFailed(Retryable):
    """A request to a cloud service failed; its caller decides what that means.

    Fields: ``kind`` (`fleet.stores.aws.Kind`), ``code``, ``reasons`` (one for each item of a
    transaction).
    """

    default_remedy = "retry; what was written is read back first"


class RunUnknown(Permanent):
    """There is no campaign run of this id."""

    default_remedy = "list the runs with `fleet runs`"


# --- node ------------------------------------------------------------------


class NotOwner(Retryable):
    """This process does not own the node's journal; another one serves."""

    default_remedy = "retry against the owner named; it answers once the owner has drained"


class WrongNode(Permanent):
    """A command addressed to one node reached another one."""

    default_remedy = "nothing was touched; check the host labels of the raylets (`fleet/host`)"


class NodeDegraded(Retryable):
    """The node serves, but its journal was set aside and its devices are HELD until proven free."""

    default_remedy = "see `fleet status`; `fleet node adopt` records that the devices are free"


class DeviceUnknown(Permanent):
    """No device of this name or UUID is on the node."""

    default_remedy = "list the devices with `fleet devices`"


class DeviceBusy(Retryable):
    """The device is held, in use or being worked on. Fields: ``holder``."""

    default_remedy = "wait until its holder is done"


class DeviceUnfit(Permanent):
    """The device is quarantined or held."""

    default_remedy = "see its reasons with `fleet quarantine list`"


class JournalUnreadable(Permanent):
    """The journal exists but cannot be read (permission, I/O), or not by who only looks."""

    default_remedy = (
        "repair access to the file named; nothing was changed and nothing is assumed free"
    )


class SpecUnavailable(Retryable):
    """A claim's CDI spec cannot be written, read or removed now; what was visible stays so."""

    default_remedy = "repair access to the directory named; the repeated call goes on from there"


# --- kubernetes ------------------------------------------------------------


class ApiNotFound(Permanent):
    """The API server has no such object."""

    default_remedy = "check the name; an object that was deleted needs nothing more"


class ApiConflict(Retryable):
    """A guard did not hold: the object changed, or exists already. Field: ``reason``."""

    default_remedy = "read the object again and decide anew; nothing was written"


class ApiInvalid(Permanent):
    """The API server refuses the body. Field: ``causes``, a list of (reason, field, message)."""

    default_remedy = "nothing was written; this body will never be accepted as it is"


class ParametersRespelled(ApiInvalid):
    """A claim's opaque parameters are spelled so that the API server refuses every other write."""

    default_remedy = (
        "make the claim (or its template) anew, with the parameters as compact JSON, keys sorted:"
        " kubectl writes them so, in Python json.dumps(..., sort_keys=True, separators=(',', ':'))"
    )


class ApiForbidden(Permanent):
    """A right is missing. Fields: ``status`` (HTTP), ``causes``."""

    default_remedy = "grant the right named to the service account; see deploy/ for the roles"


class HoldsNotGranted(ApiForbidden):
    """Our reservations on claims are not allowed to us; devices in use are tainted instead."""

    default_remedy = (
        "grant `patch` on resourceclaims/binding and resourceclaims/status cluster-wide, and on"
        " resourceclaims, to the service account; see deploy/ for the roles"
    )


class ApiUnavailable(Retryable):
    """The API server does not answer; a write may or may not have been carried out."""

    default_remedy = "retry; what was written is read back first"


class ApiFailed(Permanent):
    """The API server failed on this request (5xx); it answers so to malformed bodies too."""

    default_remedy = "see the API server's log; the same request is not repeated blindly"


class ClusterForeign(Permanent):
    """The API server is that of another cluster than recorded. Fields: ``ours``, ``theirs``.

    Nothing was changed: there every claim of ours would look gone.
    """

    default_remedy = "name the right cluster with --kubeconfig"


class ClaimUnready(Retryable):
    """The claim at the API does not allow a prepare now (no allocation, no live consumer ...)."""

    default_remedy = "kubelet asks again; the claim is read anew then"


class ClaimReplaced(Permanent):
    """The API's claim of this name has another UID: the one asked for is gone."""

    default_remedy = "the pod of the old claim is being replaced; nothing is prepared for it"


class ClaimConfigInvalid(Permanent):
    """The claim's opaque configuration cannot be accepted."""

    default_remedy = "correct the configuration in the claim, its template or the device class"


class CgroupsUnreadable(Retryable):
    """The host's cgroups do not tell whether a pod is left: unknown, which is never "gone"."""

    default_remedy = "show the process the host's cgroups and processes (cgroup root, hostPID)"


class CheckpointUnreadable(Retryable):
    """Kubelet's record of which pods use which claims cannot be read: unknown, never "nobody"."""

    default_remedy = "repair access to the file named; kubelet itself refuses a corrupt one"


class PluginUnavailable(Retryable):
    """A DRA plugin is not registered, or did not answer kubelet in time. Field: ``code``."""

    default_remedy = "start the plugin of the driver named; kubelet asks again"


class SocketTaken(Permanent):
    """The path of a socket is in use by a live instance, or is no socket."""

    default_remedy = "stop the other instance, or give this one an instance name of its own"


# --- back ends -------------------------------------------------------------


class DriverAbsent(Permanent):
    """No accelerator driver answered: the devices are unknown, not absent.

    Field ``code`` where the driver's library gave a number.
    """

    default_remedy = "install or start the driver, or simulate a fleet with `--simulate 2x8`"


class DeviceLost(Permanent):
    """The device stopped answering."""

    default_remedy = "check the kernel log; reset or reboot, then `fleet scrub` the device"


class OutOfMemory(Retryable):
    """The back end cannot allocate a chunk of this size now."""

    default_remedy = "a smaller chunk is tried"


class BackendFailed(Retryable):
    """A call into the driver failed or timed out."""

    default_remedy = "retried by the next sweep; persistent failure quarantines the device"


class DriverBusy(BackendFailed):
    """The driver starts, or another device is reset; says nothing of the device asked for."""

    default_remedy = "retried; a driver that nothing keeps loaded takes seconds to start"


class ResetFailed(BackendFailed):
    """A reset was tried and the device was not reset, or not proven to be."""

    default_remedy = "reboot the node; if it stays so, the device needs repair"


class Wedged(BackendFailed):
    """A killed program is still there and may still act on the device."""

    default_remedy = "wait until the process named is gone, or reboot the node"


class DriverRefused(BackendFailed):
    """A driver answered a call with an error. Field: ``code``, the driver's number."""


# --- evidence --------------------------------------------------------------


class EvidenceInvalid(Permanent):
    """Evidence does not verify; ``findings`` lists each place."""

    exit_code = 1
    default_remedy = (
        "treat the devices named as not certified; scrub them and keep the files for inquiry"
    )


class EvidenceConflict(EvidenceInvalid):
    """The archive keeps other bytes under the name of what is to be kept; ``key``."""


class EvidenceRefused(Permanent):
    """A certificate was asked for a run that is unfinished or unverified."""

    default_remedy = "wipe the device again; no certificate exists for this run"


class LedgerUnavailable(Retryable):
    """Evidence cannot be written or read now (disk full, I/O, permission); nothing was stored."""

    default_remedy = "free space or repair access to the file; nothing becomes CLEAN meanwhile"


class KeyUnusable(Permanent):
    """The signing key cannot be used (missing, unreadable by us, or readable by others)."""

    default_remedy = "restore the key or its mode 0600, or move it away to have a new one made"


# --- fleet -----------------------------------------------------------------


class RayUnavailable(Retryable):
    """Ray did not answer, or the actor is restarting; the call may or may not have run."""

    default_remedy = "retry; calls carry an operation id and are never done twice"


class FleetRefused(Permanent):
    """The campaign would break a limit (budget, floor, breaker) and went no further."""

    exit_code = 1
    default_remedy = (
        "see the limits named in the policy; `fleet scrub --resume RUN` goes on once they allow it"
    )


class Unforeseen(Permanent):
    """An error nobody planned for, converted at a process border so that callers see one tree."""

    default_remedy = "see the log of the process named; this is a fault of the product, report it"
