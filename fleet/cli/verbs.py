"""The one table of verbs: the command line is built from it, and so is its documentation."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb, or a family of verbs when `attribute` names a typer application."""

    name: str
    line: str
    module: str
    attribute: str = "app"


PANELS: dict[str, tuple[Verb, ...]] = {
    "Every day": (
        Verb("scrub", "Wipe, verify and certify every free device of the fleet.", "scrub", "scrub"),
        Verb("status", "Is the fleet fit, and if not, what is to be done.", "status", "status"),
        Verb("devices", "List every device with its state, retire or partition one.", "devices"),
        Verb("runs", "List campaign runs, or show one.", "runs", "runs"),
        Verb("sweep", "Read the health of every device now.", "sweep", "sweep"),
        Verb(
            "report",
            "One run as a page, or which devices answer a requirement.",
            "report",
            "report",
        ),
        Verb("evidence", "List, show, verify and export certificates.", "evidence"),
        Verb("audit", "Compare leases, nodes, certificates and the cluster.", "audit", "audit"),
        Verb(
            "prove", "Plant a secret, release, take the device again, search it.", "prove", "prove"
        ),
    ),
    "Decisions of people": (
        Verb("quarantine", "What is out of service, and decisions about it.", "quarantine"),
        Verb("node", "Decisions about a whole node.", "node"),
        Verb("claim", "Allocate a claim where no scheduler does, or explain one.", "claim"),
        Verb("reconcile", "Take away what belongs to nobody any more.", "reconcile", "reconcile"),
        Verb("uninstall", "List, or take away, everything that is ours.", "uninstall", "uninstall"),
        Verb("tag", "Rights of namespaces to devices, as signed tags.", "tag"),
        Verb("store", "Make or adopt the lease store.", "store"),
    ),
    "Services": (
        Verb(
            "coordinate",
            "Reconcile the claims of a cluster with the nodes of this host.",
            "coordinate",
            "coordinate",
        ),
        Verb("admission", "The webhook that judges claims before they are made.", "admission"),
    ),
    "Manifests, schemas, simulation": (
        Verb("lint", "Judge manifests by the rules of admission.", "lint", "lint"),
        Verb("schema", "The shape of what verbs answer with --json.", "schema", "schema"),
        Verb("sim", "Act as a tenant of simulated devices, or break them.", "sim"),
    ),
}
"""The verbs, as the help groups them."""
VERBS = tuple(verb for panel in PANELS.values() for verb in panel)


class Panels(TyperGroup):
    """The verbs under the titles of their panels."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  click calls it so
        """Write each panel's verbs."""
        for title, panel in PANELS.items():
            with formatter.section(title):
                formatter.write_dl([(verb.name, verb.line) for verb in panel])


def build(arguments: Sequence[str] | None = None) -> typer.Typer:
    """The application; of the verbs, where `arguments` are given, only the one they name with what
    is behind it. All of them together take a second to load, and one command line needs one.
    """
    wanted = None if arguments is None else named(arguments)
    app = typer.Typer(
        name="fleet",
        no_args_is_help=True,
        cls=Panels,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Proof that no tenant receives a device carrying another tenant's data or a fault.",
    )
    for verb in VERBS:
        if arguments is not None and verb.name != wanted:
            app.command(verb.name, help=verb.line)(_elsewhere)
            continue
        module = importlib.import_module(f"fleet.cli.{verb.module}")
        found = getattr(module, verb.attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=verb.name, help=verb.line)
        else:
            app.command(verb.name, help=_help(verb, found.__doc__))(found)
    return app


def named(arguments: Sequence[str]) -> str:
    """The verb of a command line, "" where it names none: `fleet` itself has no option that takes
    a value."""
    first = next((word for word in arguments if not word.startswith("-")), "")
    return first if any(verb.name == first for verb in VERBS) else ""


def _elsewhere() -> None:
    """Stands for a verb that the command line does not name."""
    raise AssertionError("a verb was called that is not loaded")


def _help(verb: Verb, docstring: str | None) -> str:
    rest = " ".join((docstring or "").split())
    return f"{verb.line} {rest}".strip()


def reference(app: typer.Typer) -> str:
    """The command line's reference as Markdown, from the table and the commands themselves."""
    root = typer.main.get_command(app)
    lines = ["# Command line", "", "Generated from the verb table; exit codes: 0 good, 1 found"]
    lines += [
        "something, 2 could not run; `fleet lint` ends 3 where something could not be judged."
    ]
    lines += ["Every verb takes `--json`, and `fleet schema` prints the shapes,"]
    lines += ["except the services `fleet node standby`, `fleet coordinate` and"]
    lines += ["`fleet admission serve`, which log.", ""]
    lines += ["Completion for bash, zsh and fish: the option `--install-completion`.", ""]
    for title, panel in PANELS.items():
        lines += [f"| {title.lower()} | what it does |", "|---|---|"]
        lines += [*(f"| `fleet {verb.name}` | {verb.line} |" for verb in panel), ""]
    lines.pop()
    for path, command in _walk(root, ("fleet",)):
        lines += ["", f"## `{' '.join(path)}`", "", (command.help or "").strip(), ""]
        lines += _parameters(command)
    return "\n".join(lines) + "\n"


def _walk(
    command: object, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], TyperCommand | TyperGroup]]:
    if isinstance(command, TyperGroup):
        if command.invoke_without_command:
            yield path, command  # a verb by itself besides those below it
        for name, sub in command.commands.items():
            yield from _walk(sub, (*path, name))
    elif isinstance(command, TyperCommand):
        yield path, command


def _parameters(command: TyperCommand | TyperGroup) -> list[str]:
    context = typer.Context(command)
    rows = ["| argument or option | meaning |", "|---|---|"]
    for parameter in command.params:
        record = (
            parameter.get_help_record(context)
            if isinstance(parameter, TyperOption)
            else (str(parameter.name).upper(), str(getattr(parameter, "help", None) or ""))
        )
        if record is not None:
            name, meaning = record
            rows.append(f"| `{name}` | {meaning} |")
    return rows
