"""Devices an operator retired are not offered, present or gone. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.core.messages import NodeView
from fleet.kube.base import Object
from fleet.plugin.slices.device_attributes import attribute

WHY = "an operator retired it (`fleet devices retire`)"


def barred(view: NodeView, remembered: Mapping[str, Object]) -> Mapping[str, str]:
    """Why each retired device, and each part of one, must not be published, by UUID.

    `remembered`: devices published before, by name; a card that is gone is known from there only.
    """
    retired = frozenset(view.retired)
    found = dict.fromkeys(view.retired, WHY)
    for device in view.devices:
        if device.accelerator in retired:
            found[device.uuid] = WHY
    for entry in remembered.values():
        if attribute(entry, "parentUUID") in retired:
            found[attribute(entry, "uuid")] = WHY
    return found
