"""The image, built from Debian's packages and `uv.lock` without a registry and without a daemon."""
