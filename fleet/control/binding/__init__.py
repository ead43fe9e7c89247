"""Claims of the whole cluster meet devices, leases and proof here (DESIGN 5, Pre-bind and Hold)."""
