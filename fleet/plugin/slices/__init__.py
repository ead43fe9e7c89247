"""ResourceSlices: what a node offers, when a device may be allocated, and the pool protocol."""
