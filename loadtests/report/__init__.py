"""Reports for people and tables for scripts: one HTML file, and CSV files."""
