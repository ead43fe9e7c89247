"""The words of the domain and its two tables; what every room may import. No room is imported."""
