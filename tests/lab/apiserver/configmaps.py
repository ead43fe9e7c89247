"""The rules of ConfigMaps: how much they hold, which keys, and that a frozen one stays. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

from fleet.kube.base import Object
from tests.lab.apiserver.refusal import FORBIDDEN, Cause
from tests.lab.apiserver.rules import Write, too_long, wrong

LIMIT_BYTES = 1024 * 1024
"""Most bytes of all values together; those of binaryData count decoded."""
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_BAD_KEY = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"


class ConfigMapRules:
    """Rules of ConfigMaps."""

    def prepare(self, write: Write) -> Object:
        """Nothing is reset."""
        return write.new

    def judge(self, write: Write) -> Sequence[Cause]:
        """Causes for bad keys, values that are too large together, and changes of a frozen one."""
        plain, packed = write.new.get("data", {}), write.new.get("binaryData", {})
        found = [
            wrong(f"{field}[{key}]", key, _BAD_KEY)
            for field, values in (("data", plain), ("binaryData", packed))
            for key in values
            if not _KEY.fullmatch(key) or key in (".", "..")
        ]
        found += [
            wrong(f"data[{key}]", key, "duplicate of key present in binaryData")
            for key in sorted(plain.keys() & packed.keys())
        ]
        size = sum(len(text.encode()) for text in plain.values())
        for key, text in packed.items():
            try:
                size += len(base64.b64decode(text, validate=True))
            except binascii.Error:
                found.append(wrong(f"binaryData[{key}]", key, "illegal base64 data"))
        if size > LIMIT_BYTES:
            found.append(too_long("[]", LIMIT_BYTES))
        if write.old is not None and write.old.get("immutable"):
            for field in ("data", "binaryData", "immutable"):
                if write.new.get(field) != write.old.get(field):
                    told = "Forbidden: field is immutable when `immutable` is set"
                    found.append(Cause(FORBIDDEN, field, told))
        return found
