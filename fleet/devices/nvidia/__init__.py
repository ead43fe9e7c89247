"""NVIDIA devices through NVML and the CUDA driver API.

`nvml` and `cuda` are the only modules that import the vendor's bindings; both are used only inside
processes that can be killed (`fleet.devices.child`, `fleet.devices.wipe.worker`), because a call
into a sick driver may never return.
"""
