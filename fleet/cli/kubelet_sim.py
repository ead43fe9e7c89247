"""`fleet kubelet-sim`: the life of pods on one node, without a cluster."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from fleet.cli import text
from fleet.cli.output import AsJson, VerbAnswer, emit
from fleet.core import errors
from fleet.core.profiles import Profile


class KubeletStory(VerbAnswer):
    """The story told by kubelet-sim."""

    kind: Literal["kubelet-sim"] = "kubelet-sim"
    held: bool
    """Whether every promise held."""
    lines: tuple[str, ...]


def kubelet_sim(
    *,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep everything below this new directory; else it is removed."),
    ] = None,
    profile: Annotated[
        str, typer.Option("--profile", help="Sanitization profile: fast or lab.")
    ] = Profile.FAST.value,
    as_json: AsJson = False,
) -> None:
    """A kubelet stand-in registers the real plugin and runs pods on simulated devices.

    Every step is shown with its time, and one CDI file whole: prepare, restart, a second tenant
    who searches for the first one's secret, force delete, reboot.
    """
    from node_plugin.kubelet_sim import demo

    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if not as_json:
            typer.echo("\n".join(map(text.visible, line.split("\n"))))

    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise errors.InputInvalid(
            f"{directory} is not empty", remedy="name a directory that does not exist yet"
        )
    with tempfile.TemporaryDirectory(prefix="fleet-kubelet-") as scratch:
        code = demo.run(directory or Path(scratch), say, profile=_profile(profile))
    if as_json:
        emit(KubeletStory(held=code == 0, lines=tuple(lines)), as_json=True, render=lambda _: None)
    raise typer.Exit(code)


def _profile(name: str) -> Profile:
    """`strict` waits for binding conditions that a coordinator sets; here is none."""
    if name not in (Profile.FAST, Profile.LAB):
        raise errors.InputInvalid(
            f"profile {name!r} cannot be shown without a cluster", remedy="choose fast or lab"
        )
    return Profile(name)
