"""Tests of resharding."""
