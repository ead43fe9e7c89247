"""Kernel modules that keep a GPU open: clients which no list of processes shows.

The driver says "in use by another client" for them too, and whoever looks for a process looks in
vain. Which GPU a module holds is told nowhere; named is what may be it, and how to make it go.
"""

from __future__ import annotations

from pathlib import Path

from fleet.devices.sysfs import read_text

_MODULES = {
    "nvidia_drm": "displays",
    "nvidia_peermem": "direct transfers by network adapters",
    "nvidia_fs": "direct transfers from storage",
    "gdrdrv": "copies through the processor's window",
    "nvidia_modeset": "displays",
}
_DISPLAY, _BELOW_DISPLAY = "nvidia_drm", "nvidia_modeset"
_ALWAYS = frozenset({"nvidia_peermem"})
"""Registered with another part of the kernel as soon as they are loaded, and counting no user."""
_ON = ("Y", "1")


def told(root: Path) -> str:
    """Modules of the kernel that may hold a GPU, in words with the remedy; "": none is loaded."""
    modules = root / "sys/module"
    found = {name: words for name in _MODULES if (words := _holding(modules, name))}
    if not found:
        return ""
    if _DISPLAY in found:
        found.setdefault(_BELOW_DISPLAY, "")
    named = ", ".join(f"{name} ({words})" for name, words in found.items() if words)
    return f"no process has it open, the kernel may: {named}; rmmod {' '.join(found)}, then repeat"


def _holding(modules: Path, name: str) -> str:
    """Why a module may hold a GPU; "": it is not loaded, or cannot."""
    users = _number(read_text(modules / name / "refcnt"))
    if users is None:
        return ""
    why = [_MODULES[name]]
    if name == _DISPLAY:
        parameters = modules / name / "parameters"
        why += [f"{one}=Y" for one in ("modeset", "fbdev") if read_text(parameters / one) in _ON]
    if name == _BELOW_DISPLAY and (modules / _DISPLAY / "refcnt").exists():
        users -= 1  # the display module itself
    if users > 0:
        why.append(f"{users} users")
    return ", ".join(why) if len(why) > 1 or name in _ALWAYS else ""


def _number(text: str | None) -> int | None:
    """A count the kernel shows; None where the module is not there."""
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None
