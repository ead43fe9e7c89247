"""The node service: owns the journal and the local devices; everything that touches memory is here.

Read in this order: `registry` (what the node knows), `wiping` (one wipe, start to certificate),
`holding` (a claim's prepare and unprepare), `sweep` (health), `recovery` (what a start does),
`service` (the face others call).
"""
