"""A whole cluster in memory under virtual time: the product's own code between models of the rest.

Everything is deterministic by seed: there is one thread, one clock, and one source of randomness
for each part of the world.
"""
