"""Where answers go in the end."""
