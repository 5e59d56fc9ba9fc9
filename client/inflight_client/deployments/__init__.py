"""What a server serves: how it is detected, the requests that it takes, and what its answers mean."""
