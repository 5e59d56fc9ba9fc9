"""What is asked of the server: prompts from files, of chosen lengths, in conversations, or as a trace has them."""
