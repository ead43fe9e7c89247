"""AWS on loopback: moto's server in a process of its own, and a proxy that makes the net fail."""
