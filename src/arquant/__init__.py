"""arquant."""
