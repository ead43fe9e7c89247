"""What people look at, in a real browser."""
