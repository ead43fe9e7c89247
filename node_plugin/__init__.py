"""What kubelet talks to: gRPC over unix sockets, in front of `fleet.dra`. No Ray here."""
