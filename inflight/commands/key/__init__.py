"""`inflight key`."""
