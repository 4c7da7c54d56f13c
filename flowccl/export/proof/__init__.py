"""Proof of exported files: an interpreter that runs them in every order at once, and an estimate of their time."""
