"""To a runtime."""
