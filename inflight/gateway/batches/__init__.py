"""Files and batches of the OpenAI-compatible API: their stores, and the runner of the batches."""
