"""The networks of the paper, each in a file of its own, and their registry."""
