"""`fleet scrub`: the main job, from the command line to the report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from fleet.cli import progress, reach, scrub_report, text
from fleet.cli.options import (
    ADDRESS,
    OperatorOption,
    StateOption,
    operator_name,
    state_directory,
)
from fleet.cli.output import AsJson, VerbAnswer, emit, error_console
from fleet.control.campaign import budget, plan, select
from fleet.control.campaign.report import RunReport
from fleet.control.campaign.scope import Scope
from fleet.control.campaign.targets import Target, target_of
from fleet.core import errors
from fleet.core.messages import Message, NodeView
from fleet.core.model import RunId
from fleet.core.settings import CampaignPolicy, Settings
from fleet.core.settings_parse import parse_size
from fleet.wiring import adapters, plans
from fleet.wiring.adapters import FleetPlan

SimulateOption = Annotated[
    str | None,
    typer.Option(
        "--simulate",
        metavar="NxM",
        help="Simulate N nodes of M devices (NxMpK: K of them partitionable).",
        show_default=False,
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Memory of each simulated device, such as 64MiB.",
        show_default=False,
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Sanitization profile: strict, fast or lab.",
        show_default=False,
    ),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="Settings (TOML or JSON).", show_default=False),
]
SelectOption = Annotated[
    str,
    typer.Option(
        "--select",
        metavar="EXPR",
        help="Only these devices: key=value, key!=value, key~glob, with commas between.",
        show_default=False,
    ),
]
ParallelOption = Annotated[
    int | None,
    typer.Option("--max-parallel", metavar="N", min=1, help="Devices at once.", show_default=False),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the plan and touch nothing.")]
ResumeOption = Annotated[
    str,
    typer.Option("--resume", metavar="RUN", help="Go on with this run.", show_default=False),
]
WhereOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="RAY",
        envvar=ADDRESS,
        help="Run in a running Ray: http://host:8265 submits a job, host:6379 attaches.",
        show_default=False,
    ),
]
DashboardOption = Annotated[
    bool, typer.Option("--dashboard", help="Start the local Ray with its dashboard.")
]
NoWaitOption = Annotated[
    bool,
    typer.Option("--no-wait", help="End at once where another command has the nodes."),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Scrub real devices without asking.")]
SettingsJsonOption = Annotated[str, typer.Option("--settings-json", hidden=True)]


class ScrubAnswer(RunReport, VerbAnswer):
    """What a campaign came to."""

    kind: Literal["scrub"] = "scrub"


class TargetRow(Message):
    """A device that a campaign would wipe."""

    node: str
    device: str
    uuid: str
    state: str
    memory_bytes: int


class ScrubPlanAnswer(VerbAnswer):
    """What a campaign would do."""

    kind: Literal["scrub plan"] = "scrub plan"
    simulated: bool
    waves: tuple[tuple[TargetRow, ...], ...]
    blocked: tuple[TargetRow, ...]


def scrub(
    context: typer.Context,
    *,
    simulate: SimulateOption = None,
    memory: MemoryOption = None,
    profile: ProfileOption = None,
    policy: PolicyOption = None,
    selection: SelectOption = "",
    max_parallel: ParallelOption = None,
    dry_run: DryRunOption = False,
    resume: ResumeOption = "",
    address: WhereOption = None,
    dashboard: DashboardOption = False,
    yes: YesOption = False,
    no_wait: NoWaitOption = False,
    operator: OperatorOption = None,
    state: StateOption = None,
    settings_json: SettingsJsonOption = "",
    as_json: AsJson = False,
) -> None:
    """Exit code 0: every device came out well; 1: something was found; 2: it could not run.

    Ctrl-C stops in order and leaves a run that --resume goes on with.
    """
    directory = state_directory(state)
    select.parse(selection)
    if resume and (selection or max_parallel is not None):
        raise errors.InputInvalid(
            "a run that is resumed keeps its own selection and limits",
            remedy="leave --select and --max-parallel away, or start a new run without --resume",
        )
    settings = _settings(policy, settings_json, max_parallel)
    if address is not None and address.startswith(("http://", "https://")):
        arguments = _handed_on(context, settings, operator_name(operator))
        raise typer.Exit(_submit(address, arguments, as_json=as_json))
    fleet_plan = _plan(directory, _Shape(simulate, memory, profile), settings, address=address)
    if dry_run:
        _dry_run(directory, settings, (selection, resume), address=address, as_json=as_json)
        return
    if fleet_plan is not None and address is None:
        console = error_console()
        reach.await_free(
            fleet_plan.nodes, wait=not no_wait, say=lambda line: console.print(text.plain(line))
        )
    choices = _Choices(selection, resume, operator_name(operator), dashboard=dashboard, yes=yes)
    report = _run(fleet_plan, settings, choices, address=address)
    emit(
        ScrubAnswer.of(report),
        as_json=as_json,
        # As typed: what is told to be run next is run from the same place.
        render=lambda console: scrub_report.render(console, report, state=state or directory),
    )
    raise typer.Exit(report.exit_code)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The simulated fleet asked for, as typed."""

    simulate: str | None
    memory: str | None
    profile: str | None


@dataclass(frozen=True, slots=True)
class _Choices:
    """How the campaign is to be run."""

    selection: str
    resume: str
    operator: str
    dashboard: bool
    yes: bool


def _settings(policy: Path | None, given: str, max_parallel: int | None) -> Settings:
    from fleet.core import settings_file

    if given:
        settings = Settings.model_validate_json(given)
    else:
        settings = settings_file.load(policy) if policy else Settings()
    if max_parallel is None:
        return settings
    campaign = settings.campaign.model_copy(update={"max_parallel": max_parallel})
    return settings.model_copy(update={"campaign": campaign})


def _plan(
    directory: Path, shape: _Shape, settings: Settings, *, address: str | None
) -> FleetPlan | None:
    if address is not None and shape.simulate is None:
        return None
    if shape.simulate is None:
        plans.discover_fleet(directory, settings)
    found = adapters.plan_fleet(
        directory,
        simulate=shape.simulate,
        memory_bytes=parse_size(shape.memory) if shape.memory else None,
        profile=shape.profile,
        settings=settings,
    )
    adapters.require_store(found.coordinator)  # said at once, before a Ray is started for it
    return found


def _run(
    fleet_plan: FleetPlan | None, settings: Settings, choices: _Choices, *, address: str | None
) -> RunReport:
    from jobs import scrub as job

    console = error_console()
    display = progress.choose(console)
    confirmed = _Confirmation(console, yes=choices.yes)
    where = address or "a Ray of our own"
    console.print(text.plain(f"gathering the fleet in {where} ..."))
    request = job.ScrubRequest(
        policy=settings.campaign,
        select=choices.selection,
        resume=choices.resume,
        operator=choices.operator,
        dashboard=choices.dashboard,
    )
    # Ray prints the death of any process to stdout, which belongs to the report alone.
    with display, redirect_stdout(sys.stderr):
        return job.run(
            request, fleet_plan, address=address, observer=display.show, confirm=confirmed.ask
        )


@dataclass(frozen=True, slots=True)
class _Confirmation:
    """Real devices are scrubbed only after somebody has seen which."""

    console: Console
    yes: bool

    def ask(self, listed: Sequence[NodeView]) -> bool:
        """Whether to go on with the devices of these views. Raises `InputInvalid` where nobody
        can be asked."""
        real = [view for view in listed if not view.simulated]
        count, held = text.listed(self.console, real)
        if not count:
            return True
        if held:
            self.console.print(
                text.plain(f"{held} of them are HELD: going on is your word that nobody uses these")
            )
        if self.yes:
            return True
        if not sys.stdin.isatty():
            raise errors.InputInvalid(
                "these are real devices and nobody can be asked",
                remedy="run from a terminal, or say --yes",
            )
        return typer.confirm(
            f"All memory of these {count} devices will be overwritten, but for what a claim has."
            " Go on?",
            err=True,
        )


def _dry_run(
    directory: Path,
    settings: Settings,
    asked: tuple[str, str],
    *,
    address: str | None,
    as_json: bool,
) -> None:
    """`asked`: the selection, and the run to be resumed."""
    selection, resume = asked
    scope, policy = Scope(select.parse(selection)), settings.campaign
    with reach.fleet(directory, address=address, looks=True) as fleet:
        views = [node.view() for node in fleet.nodes.values()]
        if resume:
            record = fleet.coordinator.run(RunId(resume))
            scope = Scope.of_run(record.plan, record.results.values(), record.exit_reason)
            policy = CampaignPolicy.model_validate(record.policy)
    listed = [scope.listing(view) for view in views]
    targets = [target_of(view, device) for view in listed for device in view.devices]
    waves = plan.plan(targets, budget.in_service(views), policy)
    answer = ScrubPlanAnswer(
        simulated=any(view.simulated for view in views),
        waves=tuple(tuple(_row(target) for target in wave) for wave in waves.waves),
        blocked=tuple(_row(target) for target in waves.blocked),
    )

    def render(console: Console) -> None:
        text.banner(console, views)
        table = text.table()
        for column in ("wave", "node", "device", "state", "memory"):
            table.add_column(column)
        for number, wave in enumerate(waves.waves, 1):
            for target in wave:
                table.add_row(
                    str(number),
                    target.node,
                    target.name,
                    text.coloured(target.state),
                    text.memory(target.memory_bytes),
                )
        console.print(table)
        for target in waves.blocked:
            console.print(text.plain(f"  {target.node}/{target.name}: no limit lets it start now"))
        console.print(f"{len(targets)} devices in {len(waves.waves)} waves; nothing was touched")

    emit(answer, as_json=as_json, render=render)


def _row(target: Target) -> TargetRow:
    return TargetRow(
        node=target.node,
        device=target.name,
        uuid=target.uuid,
        state=target.state,
        memory_bytes=target.memory_bytes,
    )


_NOT_HANDED_ON = frozenset({"address", "dashboard", "policy", "max_parallel"})
"""Of this side; the settings that `--policy` and `--max-parallel` come to go as one text."""


def _handed_on(context: typer.Context, settings: Settings, operator: str) -> list[str]:
    """The job's options: every one of this command but those named, so that none is forgotten."""
    made = {
        "operator": operator,
        "settings_json": settings.model_dump_json(exclude_unset=True),
    }
    words: list[str] = []
    for option in context.command.params:
        value = made.get(str(option.name), context.params.get(str(option.name)))
        if option.name in _NOT_HANDED_ON or value in (None, False, ""):
            continue
        words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return words


def _submit(address: str, arguments: Sequence[str], *, as_json: bool) -> int:
    from jobs import submit

    log: list[str] = []

    def sink(lines: str) -> None:
        log.append(lines)
        shown = "\n".join(map(text.visible, lines.split("\n")))
        (sys.stderr if as_json else sys.stdout).write(shown)

    code = submit.run(address, arguments, sink=sink)
    if as_json:
        sys.stdout.write(submit.document("".join(log)))
    return code
