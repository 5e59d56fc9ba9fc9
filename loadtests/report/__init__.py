"""What a person reads: one HTML file, and tables for scripts."""
