"""The tags of a claim: of one that is asked for, and of one that a device was given to. Pure.

At admission the object is all there is: signature, namespace, time and policy are judged. That a
tag is there at all is a rule (`fleet.admission.claims`). The node judges all of it again, and the
profile of the devices that were given: what a claim selects is CEL, whose outcome nobody knows
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fleet.core.errors import ClaimConfigInvalid
from fleet.core.messages import DeviceView, NodeView
from fleet.core.settings_parse import Problem
from fleet.kube import shapes
from fleet.kube.shapes import ClaimSpec, Object, written
from fleet.plugin import configuration, tags
from fleet.plugin.configuration import Entry, Origin, Statement
from fleet.plugin.resource_claim import Reading
from fleet.plugin.tags import WHOLE, TagInvalid, TagKeys, TagKeysUnreadable, Use

_DEALLOCATION = (
    "deallocation: ZeroFillMemoryOnRelease or WipeOnDeallocate in the opaque parameters of driver"
    " {driver}"
)
_TAG = (
    "isolationTag: what `fleet tag issue` printed for namespace {namespace}, in the opaque"
    " parameters of driver {driver}"
)

REFUSALS = (ClaimConfigInvalid, TagKeysUnreadable)
"""What `Isolation.refuse` raises."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A claim or template that is to be made."""

    namespace: str
    created_at: float
    """When it was made, s since the epoch; now for one about to be."""
    document: Object


@dataclass(frozen=True, slots=True)
class Isolation:
    """What is demanded of claims. Of nodes: by the settings' section ``[admission]``."""

    driver: str = ""
    required: bool = False
    """Whether each claim needs a deallocation policy and, where there are keys, a tag."""
    keys: Callable[[], TagKeys] | None = None
    """Reads the list of keys; None: none is configured, and no tag is looked at."""

    def objections(self, asked: Asked) -> Iterator[Problem]:
        """What speaks against making it. Raises `TagKeysUnreadable` where tags must be judged."""
        for spec in shapes.claims(asked.document):
            yield from self._of_spec(spec, asked)

    def refuse(
        self, reading: Reading, view: NodeView, uuids: Mapping[str, str], *, used_since: float
    ) -> None:
        """Refuse a claim that may not have what it was allocated, `uuids` by name of the device.

        A claim that stands for years is used anew by each pod: it needs a tag that is good when
        its pod was made, `used_since`. One of a template is made after its pod, on the same day.
        Raises `ClaimConfigInvalid` with every problem, `TagKeysUnreadable`.
        """
        if not self.required and self.keys is None:
            return
        profiles = {device.uuid: _profile(device) for device in view.devices}
        problems: list[Problem] = []
        for result, found in zip(reading.results, reading.statements, strict=True):
            use = Use(
                reading.namespace,
                # A claim that the server did not date is as old as can be: no tag is good for it.
                max(reading.created_at, used_since) if reading.created_at else 0.0,
                found.deallocation,
                profiles[uuids[result.device]],
            )
            problems += self._judged(found, use, result.request)
        if problems:
            raise configuration.refused(problems)

    def _of_spec(self, spec: ClaimSpec, asked: Asked) -> Iterator[Problem]:
        wrong: list[Problem] = []
        entries = [
            Entry(written(one.path), Origin.CLAIM, one.requests, one.parameters)
            for one in spec.entries(self.driver)
        ]
        valid = configuration.parsed(entries, wrong)
        yield from wrong
        if wrong:
            return
        for wish in spec.wishes:
            request = wish.names[-1]
            if any(entry.covers(request) for entry, _ in valid):
                found = configuration.statement(valid, request)
                use = Use(asked.namespace, asked.created_at, found.deallocation)
                yield from self._judged(found, use, request)

    def _judged(self, found: Statement, use: Use, request: str) -> Iterator[Problem]:
        if self.required and found.deallocation is None:
            write = _DEALLOCATION.format(driver=self.driver)
            yield Problem(found.path, f"no deallocation for request {request}", write)
        if self.keys is None:
            return
        tag = _TAG.format(driver=self.driver, namespace=use.namespace)
        if not found.isolation_tag:
            if self.required:
                yield Problem(found.path, f"no isolationTag for request {request}", tag)
            return
        place = f"{found.path}.isolationTag"
        try:
            signed = tags.read(found.isolation_tag)
        except TagInvalid as error:
            yield Problem(place, error.detail, tag)
            return
        for wrong, write in tags.judge(signed, self.keys(), use):
            yield Problem(place, f"request {request}: the tag {wrong}", write)


def _profile(device: DeviceView) -> str:
    """Its partition profile, or that it is none."""
    return WHOLE if device.accelerator in ("", device.uuid) else device.profile
