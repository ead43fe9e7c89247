"""Measurements of how the fleet grows, and the guards that keep it so: docs/scale.md."""
