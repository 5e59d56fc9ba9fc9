"""Offline batch jobs: read, run, checkpoint, retry, write."""
