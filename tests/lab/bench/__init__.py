"""Benches: each figure beside its yardstick (`make bench`)."""
