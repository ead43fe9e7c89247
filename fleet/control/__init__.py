"""The coordinator: claims, leases, repairs and campaigns of the whole fleet."""
