"""Back ends: what a kind of accelerator can do. `base` is the protocol; one package per kind."""
