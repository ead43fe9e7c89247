"""A stand-in for kubelet, container runtime, scheduler and controller: for demos and tests."""
