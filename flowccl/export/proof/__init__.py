"""Proof of exported files: an interpreter that covers every order of execution, and an estimate of the finish time."""
