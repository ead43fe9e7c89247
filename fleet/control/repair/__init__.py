"""What was left behind anywhere: found, explained, taken away in the right order (E7)."""
