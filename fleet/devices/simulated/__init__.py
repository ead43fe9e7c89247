"""A simulated accelerator: real files, real processes, faults on request, never mistaken for real.

`backend` is the adapter, `topology` what exists, `memory` and `session` the wiping, `registers` and
`readings` the health, `faults` what can be broken, `clients` who has a device open.
"""
