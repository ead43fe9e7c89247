"""The Dockerfile, read: the one description of what goes into the image.

Both builders follow it. A container engine runs all of it; ours takes its stages and steps as they
are, on a base of its own (`base.py`), and refuses an instruction that it does not know.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass

from deploy.image.errors import BuildError

NAME = "Dockerfile"
COPIED_BETWEEN = "--from="
"""Begins a COPY from another stage, not from the repository."""
WHAT_A_BUILD_TAKES = frozenset({"ARG", "ENV", "WORKDIR", "COPY", "RUN", "LABEL", "USER", "CMD"})
WITHOUT_MEANING_HERE = frozenset({"HEALTHCHECK"})
"""What an OCI image cannot say."""


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction, continued lines joined, single blanks."""

    word: str
    argument: str


@dataclass(frozen=True, slots=True)
class Stage:
    """What stands between two FROM."""

    name: str
    base: str
    """An earlier stage, or an image."""
    steps: tuple[Step, ...]


def steps(text: str) -> list[Step]:
    """Every instruction of a Dockerfile."""
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    pairs = [line.split(maxsplit=1) for line in lines]
    return [Step(word, " ".join(rest.split())) for word, rest in pairs]


def stages(text: str) -> dict[str, Stage]:
    """The stages by name, in the order of the file."""
    found: dict[str, Stage] = {}
    name, base, gathered = "", "", list[Step]()
    for step in [*steps(text), Step("FROM", "")]:
        if step.word != "FROM":
            gathered.append(step)
            continue
        if name:
            found[name] = Stage(name, base, tuple(gathered))
        base, _, name = step.argument.partition(" AS ")
        gathered = []
    return found


def copied(stage: Stage) -> list[tuple[str, str]]:
    """(source, target) of what is copied from the repository; a target ends with a slash."""
    pairs = []
    for step in stage.steps:
        if step.word == "COPY" and not step.argument.startswith(COPIED_BETWEEN):
            *sources, target = step.argument.split()
            pairs += [(source, target) for source in sources]
    return pairs


def assignments(argument: str) -> dict[str, str]:
    """`NAME=value NAME="a value"` of ENV and LABEL."""
    return dict(one.split("=", 1) for one in shlex.split(argument))


@dataclass(frozen=True, slots=True)
class Configuration:
    """What an image says about its process."""

    environment: dict[str, str]
    labels: dict[str, str]
    user: str
    directory: str
    command: list[str]


def configuration(text: str, stage: str, arguments: dict[str, str]) -> Configuration:
    """What a stage leaves, with all that it stands on; `arguments` go before the defaults of ARG.

    Raises `BuildError` where the file says something this builder does not know.
    """
    known = stages(text)
    chain: list[Stage] = []
    while stage in known:
        chain.insert(0, known[stage])
        stage = known[stage].base
    values: dict[str, str] = {}
    environment: dict[str, str] = {}
    labels: dict[str, str] = {}
    user, directory, command = "0:0", "/", list[str]()
    for step in (step for one in chain for step in one.steps):
        if step.word not in WHAT_A_BUILD_TAKES | WITHOUT_MEANING_HERE:
            raise BuildError(
                f"{NAME} has the instruction {step.word}, which the builder without a container "
                "engine does not know: teach it in deploy/image/recipe.py"
            )
        said = re.sub(r"\$\{(\w+)\}", lambda name: values.get(name[1], ""), step.argument)
        if step.word == "ARG":
            name, _, default = said.partition("=")
            values[name] = arguments.get(name, default)
        elif step.word == "ENV":
            environment |= assignments(said)
        elif step.word == "LABEL":
            labels |= assignments(said)
        elif step.word == "USER":
            user = said
        elif step.word == "WORKDIR":
            directory = said
        elif step.word == "CMD":
            command = json.loads(said)
    return Configuration(environment, labels, user, directory, command)
