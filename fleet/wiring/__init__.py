"""Wiring: the only place that builds adapters and joins them to the domain."""
