"""The base: a root file system of Debian's packages, each in the version that is pinned."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from deploy.image.errors import BaseFailed, BuildError

SUITE = "bookworm"
ARCHIVES = {
    f"{SUITE}": "debian",
    f"{SUITE}-updates": "debian",
    f"{SUITE}-security": "debian-security",
}
"""Suite -> the archive it is in."""
MIRROR = "http://deb.debian.org/{}"
"""Where the archives are; the braces stand for the archive's name."""
PACKAGES = (
    "usr-is-merged",  # instead of usrmerge, which needs all of perl
    "passwd",  # groupadd and useradd of the recipe
    "python3.11",
    "python3-minimal",  # /usr/bin/python3
    "libstdc++6",  # of wheels
)
"""Beside what is essential in Debian."""
PYTHON = "/usr/bin/python3.11"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LIMIT_S = 1_200.0


def architecture() -> str:
    """Debian's name of this machine's."""
    machine = platform.machine()
    return ARCHITECTURES.get(machine, machine)


def pins_file() -> Path:
    """Where the versions for this machine are committed."""
    return Path(__file__).with_name(f"debian-{architecture()}.txt")


def pins(file: Path) -> tuple[int, dict[str, str]]:
    """When they were taken, seconds since 1970, and package -> version. Raises `BuildError`."""
    if not file.is_file():
        raise BuildError(
            f"there are no versions of Debian's packages for {architecture()}: make image-pins "
            f"writes {file.name}, to be committed"
        )
    text = file.read_text()
    taken = re.search(r"^# taken (\S+)$", text, re.MULTILINE)
    if taken is None:
        raise BuildError(f"{file.name} does not say when it was taken: make image-pins writes it")
    found = re.findall(r"^([^#=\s]+)=(\S+)$", text, re.MULTILINE)
    return int(datetime.fromisoformat(taken[1]).timestamp()), dict(found)


def renew(file: Path, *, mirror: str, mmdebstrap: str) -> int:
    """Write what the mirror has today; how many packages."""
    now = datetime.now(UTC).replace(microsecond=0)
    with tempfile.TemporaryDirectory() as made:
        archive = Path(made) / "base.tar"
        _bootstrap(archive, {}, int(now.timestamp()), mirror, mmdebstrap)
        found = installed(_status_in(archive))
    lines = [
        "# Debian's packages in the image, and their versions. Made by: make image-pins",
        f"# taken {now.isoformat()}",
        *(f"{name}={version}" for name, version in sorted(found.items())),
    ]
    file.write_text("\n".join(lines) + "\n")
    return len(found)


def archive(cache: Path, file: Path, *, mirror: str, mmdebstrap: str) -> Path:
    """The base as a tar archive, made or from an earlier build. Raises `BuildError`."""
    taken, wanted = pins(file)
    # What it is made of is its name: a base of other versions or by another way is another file.
    key = hashlib.sha256(file.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    made = cache / f"base-{key[:16]}.tar"
    if made.is_file():
        return made
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        fresh = Path(directory) / "base.tar"
        _bootstrap(fresh, wanted, taken, mirror, mmdebstrap)
        compare(installed(_status_in(fresh)), wanted, file)
        fresh.rename(made)
    return made


def installed(status: str) -> dict[str, str]:
    """Package -> version, of dpkg's status file."""
    found = {}
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            found[fields["Package"]] = fields["Version"]
    return found


def compare(found: dict[str, str], wanted: dict[str, str], file: Path) -> None:
    """Both are package -> version. Raises `BuildError` unless they are the same."""
    if found == wanted:
        return
    names = sorted(found.keys() | wanted.keys())
    differ = [
        f"{name} {wanted.get(name, 'not at all')} (the mirror has {found.get(name, 'none')})"
        for name in names
        if found.get(name) != wanted.get(name)
    ]
    raise BuildError(
        f"the mirror no longer has what {file.name} pins: {'; '.join(differ)}. Take today's "
        "versions with make image-pins and commit the file, or build from a mirror that keeps old "
        "ones: make image MIRROR=http://snapshot.debian.org/archive/{}/20260131T000000Z"
    )


def _bootstrap(
    target: Path, wanted: dict[str, str], taken: int, mirror: str, mmdebstrap: str
) -> None:
    program = shutil.which(mmdebstrap)
    if program is None:
        raise BuildError(
            "there is no mmdebstrap: install Debian's package (apt install mmdebstrap)"
        )
    # A package unpacked somewhere has its hooks and helpers beside it.
    place = Path(program).resolve().parents[1]
    hooks = place / "share/mmdebstrap/hooks/merged-usr"
    with tempfile.TemporaryDirectory() as made:
        preferences = Path(made) / "preferences"
        preferences.write_text(
            "\n".join(
                f"Package: {name}\nPin: version {version}\nPin-Priority: 1001\n"
                for name, version in wanted.items()
            )
        )
        command = [
            program,
            *("--mode=root", "--variant=essential", "--format=tar", "--quiet"),
            f"--architectures={architecture()}",
            f"--include={','.join(PACKAGES)}",
            f"--hook-directory={hooks}",
            f'--setup-hook=cp {preferences} "$1/etc/apt/preferences.d/pins"',
            '--customize-hook=rm "$1/etc/apt/preferences.d/pins" "$1/etc/hostname"',
            '--customize-hook=: > "$1/etc/resolv.conf"',
            # Versions are pinned: an old index does no harm; an archive of old ones has no other.
            *(['--aptopt=Acquire::Check-Valid-Until "false"'] if wanted else []),
            SUITE,
            str(target),
            *(f"deb {mirror.format(name)} {suite} main" for suite, name in ARCHIVES.items()),
        ]
        environment = {
            **os.environ,
            "PATH": f"{place / 'bin'}:{os.environ.get('PATH', '')}",
            "SOURCE_DATE_EPOCH": str(taken),
            "LC_ALL": "C",
        }
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    if done.returncode != 0:
        last = "\n".join(done.stdout.splitlines()[-15:])
        raise BaseFailed(f"mmdebstrap ended with {done.returncode}:\n{last}")


def _status_in(archive: Path) -> str:
    done = subprocess.run(
        ["tar", "-xOf", str(archive), "./var/lib/dpkg/status"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
