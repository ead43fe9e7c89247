"""The command line: one module per verb or family of verbs, wired together in `main`."""
