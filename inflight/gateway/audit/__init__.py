"""The audit log: a line for each request, chained by SHA-256, so that an edited, removed or moved line is found.

`line.py` has the fields, `chain.py` the file, `log.py` what a process writes with, and `check.py` what reads it."""
