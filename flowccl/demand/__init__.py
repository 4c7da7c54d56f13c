"""What must move."""
