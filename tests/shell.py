"""A shell in which the commands of a page are typed one after the other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests import document
from tests.document import Typed


class Shell:
    """A bash that keeps functions, variables and directory between commands; a context manager."""

    def __init__(self, directory: Path, scratch: Path, environ: Mapping[str, str]) -> None:
        """`directory`: where it begins; `scratch`: for what commands print."""
        self._output = scratch / "printed"
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=directory,
            env=dict(environ),
            text=True,
        )

    def __enter__(self) -> Self:
        """It runs already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it; what it started goes on only where it was put into the background."""
        self._bash.kill()
        self._bash.communicate()

    def run(self, command: str) -> tuple[int, str]:
        """Type a command; its exit code and all that it printed."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        block = f"{{ {command}\n}} < /dev/null > {self._output} 2>&1"
        self._bash.stdin.write(f"{block}\necho $?\n")
        self._bash.stdin.flush()
        code = int(self._bash.stdout.readline())
        return code, self._output.read_text(errors="replace")

    def type(self, block: Typed, values: Mapping[str, str]) -> str:
        """Type a block, its placeholders replaced; an AssertionError where it is not as the page
        has it, in an exit code or in what is printed. All that was printed."""
        printed = ""
        for command in block.commands:
            filled = document.filled(command, values)
            code, said = self.run(filled)
            printed += said if said.endswith("\n") or not said else f"{said}\n"
            wanted = document.exit_code(command)
            assert code == wanted, f"{block.page}: {filled}: exit code {code}\n{said}"
        if block.output is not None:
            wrong = document.differs(block.output, printed)
            assert not wrong, f"{block.name}: not printed: {wrong}\n--- printed:\n{printed}"
        return printed


def environment(**more: str) -> dict[str, str]:
    """That of this process, without what `make` and the test runner have put there."""
    ours = ("MAKE", "MFLAGS", "PYTEST", "FLEET_", "RAY_", "UV_", "VIRTUAL_ENV", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | more
