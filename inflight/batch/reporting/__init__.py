"""What a job says of itself: while it runs, from another terminal, and at the end."""
