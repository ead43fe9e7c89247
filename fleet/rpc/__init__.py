"""The door of a node: a unix socket at which whoever owns the journal answers, with Ray or without.

DESIGN has a bridge through Ray between the plugin and the node's actor. The owner itself answers
here instead, whatever process it lives in: a call then outlasts the bridge, Ray's head and Ray, and
costs no hop through Ray. The bridge is left with what it alone can do: attach to Ray and create
what is missing.
"""
