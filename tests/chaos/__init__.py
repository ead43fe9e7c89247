"""Kill -9 at seeded moments; a package so that it runs as `python -m tests.chaos.run`."""
