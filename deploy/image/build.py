"""Build the image: `make image`.

A base of Debian's packages, the environment on top by the Dockerfile's own steps, without what is
never used; then each program is started in it, and it is packed. The layers of the base and of what
others wrote are kept in the cache under the name of all that they are made of.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from deploy.image import archive, base, checks, left_out, recipe
from deploy.image.errors import BuildError
from deploy.image.sandbox import Sandbox

PROJECT = Path(__file__).parents[2]
REPOSITORY = "fleetscrub/fleetscrub"
"""What the chart asks for unless it is told otherwise."""
LAST = "fleetscrub"
"""The Dockerfile's stage that is built."""
SOURCE, TOOLS, CACHE = "/tmp/src", "/tmp/tools", "/tmp/cache"  # noqa: S108 # inside: a tmpfs of its own
CERTIFICATES = "/tmp/certificates"  # noqa: S108 # as above
NOT_TAKEN = ("UV_NO_CACHE", "UV_COMPILE_BYTECODE", "UV_PYTHON")
"""Of the Dockerfile's build stage: here the cache is this machine's, bytecode is compiled so that
it is always the same, and Python is another base's."""
PASSED = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
"""What the installer learns from whoever calls us, besides SSL_CERT_FILE."""
KEPT_S = 14 * 86_400.0
"""How long the cache keeps what is not used, s."""
MAKERS = ("build.py", "base.py", "archive.py", "left_out.py", "left-out.toml")
"""What decides, beside the lock and the pins, what is in the layers that are kept."""
INSTALL = "uv sync"
"""Begins a step that makes a layer."""
DONE_OTHERWISE = ("python3 -m pip install ", "python3 deploy/image/left_out.py ")
"""Begin steps of the build stage that are done here in another way: uv is at hand, and every layer
is rid of what is left out."""
COMPILE = """
import py_compile, sys
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
for name in sys.stdin.read().split("\\0"):
    try:
        py_compile.compile(name, doraise=True, invalidation_mode=mode)
    except (py_compile.PyCompileError, ValueError):
        pass
"""
"""Bytecode without a time, never compared with its source: what is in an image stays."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be built from what."""

    source: Path
    """A checkout; its Dockerfile, lock and packages are taken."""
    output: Path
    cache: Path
    name: str
    """Empty: `REPOSITORY` at the version of the package."""
    mirror: str
    mmdebstrap: str
    uv: Path


@dataclass(frozen=True, slots=True)
class Built:
    """An image."""

    archive: Path
    bill: Path
    """Bill of materials."""
    name: str
    digest: str
    unpacked: int
    """B."""


@dataclass(frozen=True, slots=True)
class _Layer:
    made_by: str
    tar: Path


def build(order: Order, *, tried: bool = True) -> Built:
    """Build the image; `tried`: with everything in it started once. Raises `BuildError`."""
    from deploy.image import bom  # its libraries are of the group deploy: not needed to look at us

    if os.geteuid() != 0:
        raise BuildError(
            "make image needs root, for chroot and for mounts of its own: run it as root (in a "
            "container: a privileged one)"
        )
    text = (order.source / "deploy/image" / recipe.NAME).read_text()
    version = tomllib.loads((order.source / "pyproject.toml").read_text())["project"]["version"]
    revision, moment = _commit(order.source)
    configuration = recipe.configuration(text, LAST, {"VERSION": version, "REVISION": revision})
    name = archive.full_name(order.name or f"{REPOSITORY}:{version}")
    order.output.mkdir(parents=True, exist_ok=True)
    order.cache.mkdir(parents=True, exist_ok=True)
    _forget(order.cache)
    with tempfile.TemporaryDirectory(dir=order.cache) as directory:
        work = Path(directory)
        root = work / "root"
        root.mkdir()
        layers = _layers(order, root, work, recipe.stages(text), moment)
        if tried:
            checks.check(root, configuration)
        packed = [
            archive.compressed(layer.tar, order.cache, partial(_gzip, root), layer.made_by)
            for layer in layers
        ]
        target = order.output / f"fleetscrub-{version}.tar"
        digest = archive.write(
            target,
            packed,
            configuration,
            name=name,
            architecture=base.architecture(),
            made=datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            moment=moment,
        )
        bill = target.with_suffix(".cdx.json")
        count = bom.write(root, bill, name=name, digest=digest, moment=moment)
        unpacked = sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir())
    print(f"{target}: {target.stat().st_size / 1e6:.0f} MB, {unpacked / 1e6:.0f} MB unpacked")
    print(f"{bill}: {count} packages")
    print(f"{name} {digest}")
    return Built(target, bill, name, digest, unpacked)


def _layers(
    order: Order, root: Path, work: Path, stages: Mapping[str, recipe.Stage], moment: int
) -> list[_Layer]:
    """Every layer, made or from the cache, and `root` filled by them."""
    pins = base.pins_file()
    taken, _ = base.pins(pins)
    ours = b"".join(Path(__file__).with_name(name).read_bytes() for name in MAKERS)
    accounts = [step.argument for step in stages["runtime"].steps if step.word == "RUN"]
    key = _key(ours, pins.read_bytes(), *(one.encode() for one in accounts))

    def debian() -> None:
        made = base.archive(order.cache, pins, mirror=order.mirror, mmdebstrap=order.mmdebstrap)
        subprocess.run(["tar", "-xpf", made, "-C", root], check=True)
        for command in accounts:
            about = {"PATH": "/usr/sbin:/usr/bin", "SOURCE_DATE_EPOCH": str(taken)}
            Sandbox(root, about, user=0, writable=True).run(["sh", "-ec", command])

    first = _layer(root, order.cache / f"layer-{key}.tar", debian, taken)
    layers = [_Layer(f"Debian {base.SUITE}, {pins.name}", first)]
    checkout = work / "src"
    _copy(order.source, checkout, recipe.copied(stages["build"]))
    for command in installs(stages["build"]):
        project = "--no-install-project" not in command.split()
        # What others wrote is of the pins' time: the same layer whatever is committed of ours.
        when = moment if project else taken
        lock = (order.source / "uv.lock").read_bytes()
        key = _key(
            key.encode(), lock, command.encode(), (order.source / "deploy/uv.txt").read_bytes()
        )
        kept = work / "project.tar" if project else order.cache / f"layer-{key}.tar"
        run = partial(_install, order, root, checkout, stages["build"], command, when)
        layers.append(_Layer(command, _layer(root, kept, run, when)))
    return layers


def installs(stage: recipe.Stage) -> list[str]:
    """The commands of the build stage that make layers. Raises `BuildError` for one not known."""
    *commands, _ = [step.argument for step in stage.steps if step.word == "RUN"]
    # The last one starts the programs, as `checks` does.
    found = [command for command in commands if not command.startswith(DONE_OTHERWISE)]
    for command in found:
        if not command.startswith(INSTALL):
            raise BuildError(
                f"the builder does not know this step of the Dockerfile: RUN {command}: teach it "
                "in deploy/image/build.py"
            )
    return found


def _layer(root: Path, kept: Path, make: Callable[[], None], moment: int) -> Path:
    """What `make` adds to `root`, as a tar archive; from the cache if it is there."""
    if kept.is_file():
        kept.touch()
        subprocess.run(["tar", "-xpf", kept, "-C", root], check=True)
        return kept
    before = _paths(root)
    make()
    for why, size in left_out.remove(root).items():
        if size:
            print(f"left out {size / 1e6:6.1f} MB: {why}")
    _compile(root, _paths(root) - before)
    fresh = kept.with_suffix(f".{os.getpid()}")
    with fresh.open("wb") as file:
        archive.write_layer(root, _paths(root) - before, file, moment)
    return fresh.rename(kept)


def _install(
    order: Order, root: Path, checkout: Path, stage: recipe.Stage, command: str, moment: int
) -> None:
    """One step of the Dockerfile that installs."""
    told = {
        name: value
        for step in stage.steps
        if step.word == "ENV"
        for name, value in recipe.assignments(step.argument).items()
    }
    cache = subprocess.run(
        [order.uv, "cache", "dir"], capture_output=True, text=True, check=True
    ).stdout.strip()
    Path(cache).mkdir(parents=True, exist_ok=True)
    shown = {SOURCE: str(checkout), f"{TOOLS}/uv": str(order.uv), CACHE: cache}
    shown |= {file: file for file in ("/etc/resolv.conf", "/etc/hosts")}
    environment = {name: value for name, value in told.items() if name not in NOT_TAKEN}
    environment |= {name: os.environ[name] for name in PASSED if name in os.environ}
    environment |= {
        "UV_PYTHON": base.PYTHON,
        "UV_CACHE_DIR": CACHE,
        "SOURCE_DATE_EPOCH": str(moment),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": f"{TOOLS}:/usr/bin",
        "HOME": "/tmp",  # noqa: S108 # inside: a tmpfs of its own
    }
    if "SSL_CERT_FILE" in os.environ:
        shown[CERTIFICATES] = os.environ["SSL_CERT_FILE"]
        environment["SSL_CERT_FILE"] = CERTIFICATES
    place = Sandbox(
        root, environment, user=0, network=True, writable=True, directory=SOURCE, shown=shown
    )
    place.run(["sh", "-ec", command])


def _compile(root: Path, names: set[str]) -> None:
    """Bytecode of these files, in one process that always does the same."""
    told = "\0".join(f"/{name}" for name in sorted(names) if name.endswith(".py"))
    if not told:
        return
    about = {"PATH": "/usr/bin", "PYTHONHASHSEED": "0"}
    command = [base.PYTHON, "-W", "ignore", "-s", "-P", "-c", COMPILE]
    Sandbox(root, about, user=0, writable=True).run(command, given=told)


def _forget(cache: Path) -> None:
    """Remove what no build has used for long, and what a killed one left."""
    for path in cache.iterdir():
        if time.time() - path.stat().st_mtime > KEPT_S:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _key(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


def _commit(source: Path) -> tuple[str, int]:
    """(revision, its time in s since 1970)."""
    git = ["git", "-C", str(source)]
    done = subprocess.run(
        [*git, "log", "-1", "--format=%H %ct"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(
            f"{source} is no checkout of git: an image is built from one, so that its time and "
            f"revision are known ({done.stderr.strip()})"
        )
    revision, moment = done.stdout.split()
    same = subprocess.run([*git, "diff", "--quiet", "HEAD"], check=False).returncode == 0
    return revision if same else f"{revision}-changed", int(moment)


def _copy(source: Path, target: Path, pairs: list[tuple[str, str]]) -> None:
    """What the recipe copies, of that what git knows, readable by all."""
    for wanted, to in pairs:
        listed = subprocess.run(
            ["git", "-C", source, "ls-files", "-z", "--", wanted],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in filter(None, listed.split("\0")):
            inside = Path(name).relative_to(wanted) if wanted.endswith("/") else Path(name).name
            path = target / to / inside
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, path)
            path.chmod(0o755 if os.access(source / name, os.X_OK) else 0o644)


def _paths(root: Path) -> set[str]:
    """Every path below root, relative to it."""
    found = set()
    for directory, directories, files in os.walk(root):
        inside = os.path.relpath(directory, root)
        prefix = "" if inside == "." else f"{inside}/"
        found |= {f"{prefix}{name}" for name in (*directories, *files)}
    return found


def _gzip(root: Path, layer: Path, target: Path) -> None:
    """By the image's own gzip: the same bytes on every machine."""
    with layer.open("rb") as read, target.open("wb") as write:
        command = ["chroot", str(root), "gzip", "--no-name", "-6"]
        subprocess.run(command, stdin=read, stdout=write, check=True)


def _path(text: str) -> Path:
    """Absolute: nothing is mounted from a place that depends on where somebody stands."""
    return Path(text).resolve()


def _main() -> int:
    parser = argparse.ArgumentParser(prog="make image", description=__doc__)
    parser.add_argument("--pins", action="store_true", help="write today's versions, build nothing")
    parser.add_argument("--source", type=_path, default=PROJECT, help="a checkout; else this one")
    parser.add_argument("--output", type=_path, default=PROJECT / "dist")
    parser.add_argument("--cache", type=_path, default=PROJECT / ".venv" / "image")
    parser.add_argument("--name", default="", help="NAME:TAG; by default what the chart asks for")
    parser.add_argument("--mirror", default=base.MIRROR, help="braces stand for the archive's name")
    parser.add_argument("--mmdebstrap", default="mmdebstrap")
    parser.add_argument("--uv", type=_path, default=PROJECT / ".venv/bin/uv")
    told = vars(parser.parse_args())
    pins = told.pop("pins")
    order = Order(**told)
    try:
        if pins:
            file = base.pins_file()
            count = base.renew(file, mirror=order.mirror, mmdebstrap=order.mmdebstrap)
            print(f"{file}: {count} packages; build with them, then commit the file")
        else:
            build(order)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(_main())
