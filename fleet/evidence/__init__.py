"""Proof of every verified wipe: signed certificates, ledgers, countersigned heads, verification."""
