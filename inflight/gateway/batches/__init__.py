"""Files and batches of the OpenAI-compatible API: their stores, and the runner of the batches."""

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
PURPOSES = ("batch", "assistants", "evals", "fine-tune", "user_data", "vision")
