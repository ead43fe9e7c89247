"""Compliance: what others require of clearing memory, and what of our evidence answers it."""
