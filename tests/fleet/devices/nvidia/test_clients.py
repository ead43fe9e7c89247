"""Kernel modules that keep a GPU open."""

from __future__ import annotations

from fleet.devices.nvidia import clients
from tests.drivers.host import Host


def test_modules_that_hold_a_gpu_are_named_with_what_to_do(host: Host) -> None:
    """gpus-8.17: a console on the display module holds a GPU without a process; the modules are
    removed in the order in which they use each other."""
    root, tree = host.hardware_root, host.tree
    assert clients.told(root) == ""
    tree.kernel_module("nvidia_modeset", users=1)
    tree.kernel_module("nvidia_drm", modeset="N", fbdev="N")
    assert clients.told(root) == "", "loaded, and nothing is on the screen"
    tree.kernel_module("nvidia_drm", modeset="Y", fbdev="Y", users=2)
    tree.kernel_module("nvidia_peermem")
    tree.kernel_module("gdrdrv")
    said = clients.told(root)
    assert "nvidia_drm (displays, modeset=Y, fbdev=Y, 2 users), nvidia_peermem (direct" in said
    assert said.endswith("rmmod nvidia_drm nvidia_peermem nvidia_modeset, then repeat")
    tree.kernel_module("gdrdrv", users=1)
    assert "gdrdrv (copies through the processor's window, 1 users)" in clients.told(root)
