"""What the containers of the chart start, read by the parser that will read it in the pod."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from fleet.kube.base import Object

STANDING_IN = {
    "NODE_NAME": "node-1",
    "POD_IP": "192.0.2.1",
    "POD_NAME": "fleetscrub-node-plugin-abcde",
    "REDIS_PASSWORD": "secret",
    "POD_UID": "0b1b7f2e-0000-4000-8000-000000000001",
}
_VARIABLE = re.compile(r"\$\(([A-Za-z_]\w*)\)")


def line(container: Object) -> list[str]:
    """Command and arguments, the container's own variables filled in.

    Raises KeyError for one that the container does not have: kubelet would leave it as it is.
    """
    known = {one["name"]: one.get("value") for one in container.get("env", ())}

    def value(found: re.Match[str]) -> str:
        return known[found[1]] or STANDING_IN[found[1]]

    return [_VARIABLE.sub(value, str(word)) for word in _words(container)]


def _words(container: Object) -> Sequence[str]:
    command, arguments = container["command"], container.get("args", ())
    if command[:2] == ["sh", "-c"] and command[2].endswith('exec ray start "$@"'):
        return ["ray", "start", *arguments]  # what the shell becomes
    return [*command, *arguments]


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """The options a command line comes to. Raises what its own parser raises."""
    program, *arguments = words
    if program == "fleet-node-plugin":
        return _plugin(arguments)
    if program == "fleet":
        return _fleet(arguments)
    if program == "ray":
        return _ray(arguments)
    assert words[:3] == ["python", "-P", "-m"], words
    return {"actors.bridge": _bridge, "actors.head_volume": _volume}[words[3]](words[4:])


def _plugin(arguments: Sequence[str]) -> dict[str, Any]:
    from node_plugin.__main__ import _address, _parser

    parser = _parser()
    parser.exit_on_error = False
    asked = _taken(parser, arguments)
    _address(asked.http)
    return vars(asked)


def _taken(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    try:
        return parser.parse_args(list(arguments))
    except SystemExit as error:
        raise AssertionError(f"fleet-node-plugin does not take {arguments}") from error


def _fleet(arguments: Sequence[str]) -> dict[str, Any]:
    import typer

    from fleet.cli.main import build

    command: Any = typer.main.get_command(build())
    context = command.make_context("fleet", list(arguments), allow_extra_args=True)
    rest = list(arguments)
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, rest)
        last = not hasattr(command, "resolve_command")
        context = command.make_context(
            name, list(rest), parent=context, **({} if last else {"allow_extra_args": True})
        )
    found: dict[str, Any] = {"verb": context.command_path, **context.params}
    return found


def _ray(arguments: Sequence[str]) -> dict[str, Any]:
    from ray.scripts import scripts

    name, *rest = arguments
    command: Any = scripts.cli.commands[name]
    found: dict[str, Any] = command.make_context(name, list(rest)).params
    return found


def _volume(arguments: Sequence[str]) -> dict[str, Any]:
    from actors.head_volume import _asked

    state, store, wait_s = _asked(arguments)
    return {"state": state, "store": store, "wait_s": wait_s}


def _bridge(arguments: Sequence[str]) -> dict[str, Any]:
    from actors.bridge import _asked

    plan, address, patience_s = _asked(list(arguments))
    return {"plan": plan, "address": address, "patience_s": patience_s}
