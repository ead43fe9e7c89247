"""Stand-ins for what surrounds the product on a real cluster, and benches: not in the wheel."""
