"""The target `llmapi`: prepares a checkpoint for TensorRT-LLM's LLM API, without compilation ahead of time."""
