"""A Kubernetes API server for tests: HTTP on loopback over the engine of fleet.kube.memory."""
