"""What the paths that repeat cost, against a yardstick measured beside them."""
