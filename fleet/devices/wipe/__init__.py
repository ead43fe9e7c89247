"""Wiping: a plan (pure), an engine that runs it over a back end's memory, and its processes."""
