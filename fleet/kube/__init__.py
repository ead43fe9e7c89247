"""The cluster's API as the domain sees it: raw objects, guarded writes, two implementations."""
