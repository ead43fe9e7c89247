"""A Kubernetes API server for tests: the rules of a real one as measured.

In memory behind the `Cluster` port (`cluster.MemoryCluster`), or over HTTP (`server.StandIn`).
"""
