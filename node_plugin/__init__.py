"""What kubelet talks to: gRPC over unix sockets, in front of `fleet.plugin`. No Ray here."""
