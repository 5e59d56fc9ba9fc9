"""What a job has done, on disk."""
