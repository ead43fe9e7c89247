"""The bill of materials: every package in a root file system, as CycloneDX."""

from __future__ import annotations

import email.parser
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from deploy.image import base

LONGEST_NAME = 64
"""A longer licence is the licence's text."""


def write(root: Path, target: Path, *, name: str, digest: str, moment: int) -> int:
    """Write the bill of the image `name`; how many packages. `moment`: s since 1970."""
    image, _, version = name.rpartition(":")
    packages = [*_debian(root), *_python(root)]
    container = Component(
        name=image,
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref=f"{image}@{digest}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.partition(":")[2])],
    )
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{image}@{digest}"),
        metadata=BomMetaData(timestamp=datetime.fromtimestamp(moment, UTC), component=container),
        components=packages,
    )
    bom.register_dependency(container, packages)
    target.write_text(JsonV1Dot6(bom).output_as_string(indent=1) + "\n")
    return len(packages)


def _debian(root: Path) -> Iterator[Component]:
    status = (root / "var/lib/dpkg/status").read_text()
    for package, version in base.installed(status).items():
        about = {"arch": base.architecture(), "distro": base.SUITE}
        yield _component(PackageURL("deb", "debian", package, version, about))


def _python(root: Path) -> Iterator[Component]:
    for file in root.glob("opt/fleetscrub/lib/python3.*/site-packages/*.dist-info/METADATA"):
        told = email.parser.Parser().parsestr(file.read_text(), headersonly=True)
        yield _component(PackageURL("pypi", None, told["Name"].lower(), told["Version"]), told)


def _component(url: PackageURL, told: Message | None = None) -> Component:
    licences: list[LicenseExpression | DisjunctiveLicense] = []
    if told is not None and told["License-Expression"]:
        licences = [LicenseExpression(told["License-Expression"])]
    elif told is not None and told["License"] and len(told["License"]) <= LONGEST_NAME:
        licences = [DisjunctiveLicense(name=told["License"])]
    return Component(
        name=url.name,
        version=url.version,
        purl=url,
        bom_ref=url.to_string(),
        licenses=licences,
        type=ComponentType.LIBRARY,
    )
