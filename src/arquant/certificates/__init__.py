"""Votes become evidence: bounds, stopping rules, certificates, their files and metrics. NumPy and SciPy only."""
