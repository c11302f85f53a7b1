"""Network definitions and where models come from."""
