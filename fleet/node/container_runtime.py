"""Whether the host's container runtime gives accelerators to whoever asks for them, past DRA.

NVIDIA's container runtime puts GPUs into a container by the variable NVIDIA_VISIBLE_DEVICES, which
images of CUDA set themselves: no manifest shows it, and no admission sees it (F03). Where that
runtime is the default one and takes the variable from unprivileged containers, every container of
such an image has every GPU of the node. What the host's files say is all that can be known of it;
files that cannot be read are told to be unknown.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

RUNTIMES = (
    *("etc/containerd/config.toml", "etc/containerd/conf.d/*.toml"),
    "var/lib/rancher/*/agent/etc/containerd/config.toml",
    *("etc/k0s/containerd.toml", "etc/k0s/containerd.d/*.toml"),
    *("etc/crio/crio.conf", "etc/crio/crio.conf.d/*", "etc/docker/daemon.json"),
)
"""Where container runtimes are configured, in the order in which the last one counts."""
TOOLKIT = (
    "etc/nvidia-container-runtime/config.toml",
    "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)
"""Where NVIDIA's is: by its package, by its operator."""
_DEFAULT = ("default_runtime_name", "default_runtime", "default-runtime")
_PROGRAM = ("BinaryName", "runtime_path", "path")
BY_VARIABLE = "accept-nvidia-visible-devices-envvar-when-unprivileged"
BY_MOUNT = "accept-nvidia-visible-devices-as-volume-mounts"
_SIZE_MAX = 2**20


class Handover(NamedTuple):
    """What is to be said about the runtime of a host; "": nothing."""

    trouble: str = ""
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    """The runtime of a host whose files are below `root`."""

    root: Path

    def look(self) -> Handover:
        """What its files say now. Raises nothing."""
        unread: list[str] = []
        base = self._base()
        found = list(documents(base, RUNTIMES, unread))
        if not found:
            why = "; ".join(unread) or "no configuration of one was found"
            return Handover(unknown=f"whether the container runtime gives GPUs past DRA: {why}")
        chosen = ""
        for one in found:
            chosen = next((text for text in _values(one, _DEFAULT)), chosen)
        if not chosen or not any(_is_nvidia(one, chosen) for one in ({}, *found)):
            return Handover()
        toolkit: dict[str, Any] = {}
        for one in documents(base, TOOLKIT, unread):
            toolkit |= one
        if any("nvidia" in text for text in unread):
            return Handover(
                unknown=f"whether runtime {chosen} gives GPUs past DRA: {'; '.join(unread)}"
            )
        ways = [
            *(["the variable NVIDIA_VISIBLE_DEVICES"] if toolkit.get(BY_VARIABLE, True) else []),
            *(["a mount"] if toolkit.get(BY_MOUNT, False) else []),
        ]
        if not ways:
            return Handover()
        return Handover(
            f"the default container runtime, {chosen}, gives every GPU to any container that asks"
            f" by {' or '.join(ways)}, its image among them; set {BY_VARIABLE} and {BY_MOUNT} to"
            f" false in /{TOOLKIT[0]}, or make another runtime the default"
        )

    def _base(self) -> Path:
        """The host's own root, seen through its first process where ours is another."""
        through = self.root / "proc" / "1" / "root"
        try:
            return through if (through / "etc").is_dir() else self.root
        except OSError:
            return self.root


def documents(
    base: Path, patterns: tuple[str, ...], unread: list[str]
) -> Iterator[Mapping[str, Any]]:
    """The files that are there, read; what cannot be read goes to `unread`."""
    for pattern in patterns:
        try:
            paths = sorted(base.glob(pattern))
        except OSError as error:
            unread.append(f"/{pattern}: {error.strerror}")
            continue
        for path in paths:
            name = f"/{path.relative_to(base)}"
            try:
                if path.stat().st_size > _SIZE_MAX:
                    unread.append(f"{name} is too large")
                    continue
                text = path.read_text(encoding="utf-8")
                read = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
            except OSError as error:
                unread.append(f"{name}: {error.strerror}")
            except (ValueError, RecursionError):
                unread.append(f"{name} is not readable")
            else:
                if isinstance(read, dict):
                    yield read


def _values(found: Any, names: tuple[str, ...]) -> Iterator[str]:
    """The texts under these names, at any depth."""
    if isinstance(found, list):
        for one in found:
            yield from _values(one, names)
    elif isinstance(found, Mapping):
        for key, one in found.items():
            if key in names and isinstance(one, str) and one:
                yield one
            else:
                yield from _values(one, names)


def _is_nvidia(found: Any, runtime: str) -> bool:
    """Whether a runtime is NVIDIA's, by its name or by the program behind it."""
    if runtime.startswith("nvidia"):
        return True
    if not isinstance(found, Mapping):
        return False
    here = found.get(runtime)
    if isinstance(here, Mapping) and any("nvidia" in text for text in _values(here, _PROGRAM)):
        return True
    return any(_is_nvidia(one, runtime) for one in found.values())
