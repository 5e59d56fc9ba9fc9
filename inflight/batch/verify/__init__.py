"""What a job has written, held against its input."""
