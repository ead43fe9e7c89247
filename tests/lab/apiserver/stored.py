"""One object as the server keeps it: content, ownership, and the text that is sent. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fleet.kube.base import Object, Resource
from tests.lab.apiserver.apply import Owners
from tests.lab.apiserver.ownership import fields_v1


@dataclass(frozen=True, slots=True)
class Stored:
    """An object without managedFields, who owns its fields, and both together as JSON text."""

    object: Object
    owners: Owners
    text: str

    @property
    def version(self) -> str:
        """metadata.resourceVersion."""
        return str(self.object["metadata"]["resourceVersion"])

    @property
    def uid(self) -> str:
        """metadata.uid."""
        return str(self.object["metadata"]["uid"])

    def copy(self) -> Object:
        """The object as sent, the caller's own."""
        found: Object = json.loads(self.text)
        return found


def stored(found: Object, owners: Owners, resource: Resource) -> Stored:
    """Put content and ownership together."""
    managed = [
        {
            "manager": owner.manager,
            "operation": owner.operation,
            "apiVersion": resource.api_version,
            "time": holding.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields_v1(holding.paths),
            **({"subresource": owner.subresource} if owner.subresource else {}),
        }
        for owner, holding in sorted(owners.items())
    ]
    metadata = {**found["metadata"], **({"managedFields": managed} if managed else {})}
    head = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    text = json.dumps({**found, **head}, ensure_ascii=False, separators=(",", ":"))
    return Stored(json.loads(json.dumps({**found, **head, "metadata": found["metadata"]})),
                  owners, text)  # fmt: skip
