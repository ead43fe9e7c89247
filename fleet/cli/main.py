"""The command `fleet`: runs a verb and turns errors of ours into an exit code and a remedy.

Exit codes: 0 good, 1 found something, 2 could not run. Results go to stdout, everything else to
stderr; an error is never shown as a traceback unless FLEET_TRACEBACK is set.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Protocol, runtime_checkable

import typer

from fleet.cli import verbs
from fleet.core import errors, logs

EXIT_COULD_NOT_RUN = 2
# No plugin of others has a part in what we validate, and looking for some reads the metadata of
# every package that is installed.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
COLLECT_AT = 10_000
"""New objects at which a command looks for garbage (Python: 700, which is for small programs)."""
PRIVATE_UMASK = 0o077
"""What we leave on disk is for its owner only, whatever umask we were started under."""


@runtime_checkable
class UsageError(Protocol):
    """A complaint of the command-line parser; its class moves between versions of typer."""

    def format_message(self) -> str: ...


_COMPLETE = "_FLEET_COMPLETE"
"""What the shells' scripts set when they ask, as the library that writes them names it."""
TRACEBACK = "FLEET_TRACEBACK"
_OTHERS = "run as whoever owns it, where it can be written: verbs that only show write there too"
_FILES = {
    errno.EACCES: _OTHERS,
    errno.EPERM: _OTHERS,
    errno.EROFS: _OTHERS,
    errno.ENOSPC: "free space on that file system, then run again",
    errno.EDQUOT: "free space within the quota there, then run again",
}
"""What to do about a file that the system refuses, by errno."""


def _version(wanted: bool) -> None:  # noqa: FBT001  the signature of a click callback
    if wanted:
        from importlib import metadata

        sys.stdout.write(f"fleet {metadata.version('fleetscrub')}\n")
        raise typer.Exit


def build(arguments: Sequence[str] | None = None) -> typer.Typer:
    """The application with its top-level options; of the verbs as `verbs.build` says."""
    app = verbs.build(arguments)

    @app.callback()
    def top(
        *,
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")
        ] = False,
    ) -> None:
        """Proof that no tenant receives a device carrying another tenant's data or a fault."""

    return app


def main(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code."""
    as_json = "--json" in arguments
    try:
        app = _loaded(arguments)
        outcome = app(args=list(arguments), prog_name="fleet", standalone_mode=False)
    except typer.Exit as done:
        return int(done.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _show(
            errors.InputInvalid("interrupted", remedy="run the command again"), as_json=as_json
        )
    except errors.FleetError as error:
        return _show(error, as_json=as_json)
    except BrokenPipeError:
        # The reader has gone; there is nobody left to tell, and flushing at exit must not try.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_COULD_NOT_RUN
    except Exception as error:
        if isinstance(error, UsageError):
            return _usage(error, arguments, as_json=as_json)
        if isinstance(error, OSError) and error.filename and error.strerror:
            return _show(refused(error), as_json=as_json)
        if os.environ.get(TRACEBACK):
            raise
        return _show(
            errors.Unforeseen(
                f"{type(error).__name__}: {error}",
                remedy=f"a fault of the product: run again with {TRACEBACK}=1 and report it",
            ),
            as_json=as_json,
        )
    return outcome if isinstance(outcome, int) else 0


def _loaded(arguments: Sequence[str]) -> typer.Typer:
    """The application for one command line; nothing was answered yet."""
    app = build(arguments if (words := _completed()) is None else words)
    if verbs.named(arguments):
        from fleet.cli import output

        output.begin()
    if not gc.isenabled():  # as `run` has it: what is loaded by now stays to the end
        gc.freeze()
        gc.enable()
    return app


def _completed() -> list[str] | None:
    """The words of a line that a shell wants completed, the last one begun; None: no shell asks."""
    if _COMPLETE not in os.environ:
        return None
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    return line.split()[1:]


def run(*verb: str) -> None:
    """Entry point of the command; a job that is a verb of its own gives `verb`. Never returns."""
    os.umask(PRIVATE_UMASK)
    logs.guard("fleet")
    # What is being loaded stays for good: looking through it again and again finds nothing.
    gc.disable()
    gc.set_threshold(COLLECT_AT)
    sys.exit(main([*verb, *sys.argv[1:]]))


def _usage(error: UsageError, arguments: Sequence[str], *, as_json: bool) -> int:
    detail = error.format_message()
    if not detail or type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(detail + "\n")
        return EXIT_COULD_NOT_RUN
    context = getattr(error, "ctx", None)
    place = context.command_path if context else _meant(arguments)
    return _show(errors.InputInvalid(detail, remedy=f"see `{place} --help`"), as_json=as_json)


def refused(error: OSError) -> errors.FleetError:
    """A file that the system does not let us use is the host's affair, not a fault of ours."""
    remedy = _FILES.get(error.errno or 0, "see that the path is there and of the kind wanted")
    return errors.InputInvalid(f"{error.filename}: {error.strerror}", remedy=remedy)


def _meant(arguments: Sequence[str]) -> str:
    """The command that was typed: the parser does not say whose option lacks its value."""
    command: Any = typer.main.get_command(build(arguments))
    path = ["fleet"]
    for word in arguments:
        if word.startswith("-"):
            continue
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        path.append(word)
    return " ".join(path)


def _show(error: errors.FleetError, *, as_json: bool) -> int:
    from fleet.cli import output, text

    if as_json:
        output.emit_error(error)
    console = output.error_console()
    console.print(text.joined(("error: ", "bold red"), error.detail))
    for problem in error.fields.get("problems", ()):
        if str(problem) not in error.detail:
            console.print(text.plain(f"  - {problem}"))
    console.print(text.joined(("do: ", "bold"), error.remedy))
    return error.exit_code


if __name__ == "__main__":
    run()
