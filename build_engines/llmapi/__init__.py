"""The target `llmapi`: a checkpoint made ready for TensorRT-LLM's LLM API, which compiles nothing ahead of time."""
