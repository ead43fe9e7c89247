"""An API server in memory: the rules of a real one as measured, the twin of the Cluster port."""
