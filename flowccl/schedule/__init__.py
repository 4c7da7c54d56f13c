"""The answer: transfers, their times, and what can be done with them."""
