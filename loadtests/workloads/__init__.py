"""Workloads: prompts from files, of chosen lengths, in conversations, or from a trace."""
