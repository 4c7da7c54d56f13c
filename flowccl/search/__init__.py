"""What every method works with: its budget, the incumbents that methods share, and the options of the search."""
