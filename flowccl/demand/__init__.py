"""The demand: the chunks of data that a collective moves."""
