"""Message queues as sources of rows."""
