"""What a campaign covers and what an earlier part of the same run left behind. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.control.campaign import select
from fleet.control.campaign.targets import Target, choose
from fleet.core.messages import DeviceResult, DeviceView, NodeView, Outcome
from fleet.core.settings import WipePolicy


@dataclass(frozen=True, slots=True)
class Agreement:
    """The devices an operator was shown and said yes to. The word covers these and no others."""

    devices: frozenset[str]
    units: frozenset[tuple[str, str]]
    """Their memory, by node: partitions may be cut otherwise when the campaign comes to them."""

    @classmethod
    def to(cls, listed: Iterable[NodeView]) -> Agreement:
        """What was said yes to: the devices of these views."""
        shown = [(view.node, device) for view in listed for device in view.devices]
        return cls(
            frozenset(device.uuid for _, device in shown),
            frozenset((node, unit) for node, device in shown for unit in device.units),
        )

    def covers(self, target: Target) -> bool:
        """Whether all of the device was shown."""
        return all((target.node, unit) in self.units for unit in target.units)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a campaign covers. `resumed`: the run was begun before; `results` are those kept."""

    selector: select.Selector = select.ALL
    results: tuple[DeviceResult, ...] = ()
    resumed: bool = False
    exit_reason: str = ""
    """Why the resumed run ended: after an open breaker one device at a time goes first."""
    wipe: WipePolicy | None = None
    """None: each node's own policy."""
    agreed: Agreement | None = None
    """What of the real devices may be touched; None: nobody has to be asked."""

    @classmethod
    def of_run(
        cls, plan: Mapping[str, object], results: Iterable[DeviceResult], exit_reason: str
    ) -> Scope:
        """That of a run that was begun before, by its record."""
        selector = select.parse(str(plan.get("select", "")))
        return cls(selector, tuple(results), resumed=True, exit_reason=exit_reason)

    def listing(self, view: NodeView) -> NodeView:
        """The node with those devices only that the campaign would take now."""
        kept = self.certified()
        taken = choose(view, lambda device: self.takes(view, device))
        left = tuple(one for one in taken if not stands(kept.get(one.uuid), one))
        return view.model_copy(update={"devices": left})

    def takes(self, view: NodeView, device: DeviceView) -> bool:
        """Whether the device is selected; one that was agreed to is, whatever its state is now."""
        listed = self.agreed is not None and device.uuid in self.agreed.devices
        return listed or self.selector.matches(view, device)

    def may_touch(self, view: NodeView, target: Target) -> bool:
        """Whether an operator's word covers the device; a simulated one needs none."""
        return view.simulated or self.agreed is None or self.agreed.covers(target)

    def certified(self) -> dict[str, DeviceResult]:
        """Results that stay, as long as the node still shows their certificate in force."""
        return {r.uuid: r for r in self.results if r.outcome is Outcome.CERTIFIED}

    def attempts_made(self) -> dict[str, int]:
        """The highest attempt number each device has a result for, read off the operation ids."""
        made: dict[str, int] = {}
        for result in self.results:
            attempt = result.operation.rpartition("/")[2]
            if attempt.isdecimal():
                made[result.uuid] = max(made.get(result.uuid, 0), int(attempt))
        return made


def stands(kept: DeviceResult | None, device: DeviceView) -> bool:
    """Whether a result of an earlier part of the run still counts: its certificate is in force."""
    return kept is not None and kept.certificate in device.certificate.split(", ")
