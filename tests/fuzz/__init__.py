"""Fuzzing: whatever arrives from outside is answered, refused in words, and harms no neighbour."""

EXAMPLES = "FLEET_FUZZ_EXAMPLES"
"""Environment variable: examples of each test. Unset: a few, always the same."""
