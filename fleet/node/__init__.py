"""The node service: owns the journal and the local devices; everything that touches memory is here.

Read in this order: `registry` (what the node knows), `wipe` (one wipe, start to certificate),
`claims` (a claim's prepare and unprepare), `sweep` (health), `recovery` (what a start does),
`service` (the face others call).
"""
