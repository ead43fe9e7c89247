"""fleetscrub: the proof that no tenant receives a device with another tenant's data or a fault.

A tour, in reading order:

    core         the words (model), the two tables (unit_states, claim_states), leases, settings
    kube         the API server as a port: objects, guarded writes, watches, events
    rpc          how a node's owner is reached: one JSON object a line over a unix socket
    devices      kinds of accelerators, the wipe (fill, verify, zero, verify), health and its tables
    evidence     signed certificates, the append-only ledger, offline verification, requirements
    stores       leases and campaign runs, in SQLite, DynamoDB or a ConfigMap; the archive in S3
    node         the journal, and the service that owns it and the devices: claims, wipes, recovery
    plugin       what kubelet and the scheduler see of a node: claims and ResourceSlices
    control      the coordinator: claims of the whole cluster, leases, repairs, campaigns
    admission    who may ask for devices, and how; metrics: views as figures
    wiring       the only place that builds adapters and joins all of this together
    cli          the command `fleet`

Rules live in pure modules; services perform them; Ray (actors/, jobs/) and gRPC (node_plugin/) only
carry calls. The wipe worker imports from this package too and must start quickly: nothing is
imported here.
"""
