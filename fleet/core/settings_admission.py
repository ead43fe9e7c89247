"""What claims must show, at a node and at admission: section ``[admission]``. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from fleet.core.settings_section import Section


class AdmissionSettings(Section):
    """What a claim must show before it is given a device."""

    required: bool = Field(
        default=False,
        description="Whether a claim needs a deallocation policy and an isolation tag in its"
        " opaque parameters to be prepared on this node, whatever its namespace. The webhook"
        " demands both in the namespaces that it is asked about, always.",
    )
    tag_keys: str = Field(
        default="",
        description="Path of the signed list of tag keys; it is read again whenever it changes."
        " With a path, a tag that a claim shows must be good even where none is required. Empty:"
        " tags are not looked at.",
    )
    tag_roots: tuple[Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")], ...] = Field(
        default=(),
        strict=False,
        description="Ids of the root keys that may sign the list, as `fleet tag key` prints them.",
    )
