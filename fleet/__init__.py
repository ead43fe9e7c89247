"""fleetscrub: the proof that no tenant receives a device with another tenant's data or a fault.

A tour, in reading order:

    model        the words: unit, device, claim, lease, token, reason
    lifecycle    what a unit of memory can be, as one table; claims: the same for a claim on a node
    leases       who may act, under which token; what a node refuses
    wipe         fill, verify, zero, verify: plan (pure), engine, worker processes
    health       readings, checks as data, quarantine reasons
    evidence     signed certificates, the append-only ledger, offline verification
    journal      the node's durable truth; node: the service that owns it and the devices
    campaign     a fleet-wide scrub as a step machine; coordinator: leases and runs of the fleet
    cdi          the specs through which containers get devices; door: how a node's owner is reached
    kube         the API server as a port; slices: what a node offers to the scheduler
    dra          kubelet's two requests, judged and handed to the node (node_plugin/ speaks gRPC)
    stores       lease and run stores; backends: kinds of accelerators (simulated)
    bootstrap    the only place that wires all this together; cli: the command `fleet`

Rules live in pure modules; services perform them; Ray (actors/, jobs/) and gRPC (node_plugin/) only
carry calls. The wipe worker imports from this package too and must start quickly: nothing is
imported here.
"""
