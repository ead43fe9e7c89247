"""What stands in for ``nvidia-smi --gpu-reset -i <ids>``: resets GPUs of the stand-in state.

Run as ``reset_tool.py <state> --gpu-reset -i <uuid or bus id, comma separated>``. Exit codes: 0,
2 for arguments, 6 when no such GPU is there, 15 when it is lost, 255 when it is in use. A file
``faults/nvidia-smi[@<uuid>]`` with ``return <code>``, ``sleep <s>`` or ``hang`` strikes the tool.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

IN_USE = (
    "The following GPUs could not be reset:\n  GPU {0}: In use by another client\n\n"
    "1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA "
    "application, graphics application such as an X server, or a monitoring application such as "
    "another instance of nvidia-smi). Please first kill all processes using this device and all "
    "compute applications running in the system.\n"
)
CLEARED = ("remap_pending", "retired_pending", "repair_channel", "repair_tpc", "recovery_action")
POLL_S = 0.02


def main(arguments: list[str]) -> int:
    """Reset what the arguments name; the exit code of the tool."""
    state, *options = arguments
    if len(options) != 3 or options[0] not in ("--gpu-reset", "-r") or options[1] != "-i":
        sys.stderr.write("Invalid combination of input arguments.\n")
        return 2
    for wanted in options[2].split(","):
        gpu = _find(Path(state), wanted)
        if gpu is None:
            sys.stdout.write("No devices were found\n")
            return 6
        code = _struck(Path(state), gpu) or _reset(gpu)
        if code:
            return code
    sys.stdout.write("All done.\n")
    return 0


def _find(state: Path, wanted: str) -> Path | None:
    for gpu in sorted((state / "gpus").iterdir()):
        address = _read(gpu, "bus_id")
        if wanted.lower() in (_read(gpu, "uuid").lower(), address, f"0000{address}", gpu.name):
            return gpu
    return None


def _reset(gpu: Path) -> int:
    address = f"0000{_read(gpu, 'bus_id').upper()}"
    if _read(gpu, "lost") == "1":
        sys.stdout.write(f"GPU {address} could not be reset: GPU is lost\n")
        return 15
    if _held(gpu):
        sys.stdout.write(IN_USE.format(address))
        return 255
    for path in gpu.iterdir():
        volatile = path.name.startswith(("ecc_", "sram_")) and "_volatile" in path.name
        if volatile or path.name in CLEARED:
            path.write_text("0\n")
    for mode in ("mig", "ecc"):
        if _read(gpu, f"{mode}_pending"):
            (gpu / f"{mode}_current").write_text(_read(gpu, f"{mode}_pending") + "\n")
    shutil.rmtree(gpu / "gi", ignore_errors=True)
    (gpu / "resets").write_text(f"{int(_read(gpu, 'resets') or 0) + 1}\n")
    sys.stdout.write(f"GPU {address} was successfully reset.\n")
    return 0


def _held(gpu: Path) -> bool:
    if _read(gpu, "persistence") == "1":
        return True
    if any((gpu / "processes").glob("*")):
        return True
    for context in (gpu / "contexts").glob("*-*"):
        pid, start = context.name.split("-")[0], context.read_text().split()[0]
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] not in "ZX" and fields[19] == start:
            return True
    return False


def _struck(state: Path, gpu: Path) -> int:
    for name in (f"nvidia-smi@{_read(gpu, 'uuid')}", "nvidia-smi"):
        rule = _read(state / "faults", name)
        words = rule.split()
        if "sleep" in words:
            time.sleep(float(words[words.index("sleep") + 1]))
        while "hang" in words and _read(state / "faults", name) == rule:
            time.sleep(POLL_S)
        if "return" in words:
            sys.stdout.write("Unable to reset GPU: Unknown Error\n")
            return int(words[words.index("return") + 1])
        if rule:
            return 0
    return 0


def _read(directory: Path, name: str) -> str:
    try:
        return (directory / name).read_text().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
