"""Rows on their way: in which order, how many at a time, to which server, and again."""
