"""Tests; a package so that the protocol model can be imported by several of them."""
