"""Reports on a job: while it runs, from another terminal, and at the end."""
