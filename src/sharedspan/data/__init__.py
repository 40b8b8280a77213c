"""The door for users' rows, and what is kept of them."""
