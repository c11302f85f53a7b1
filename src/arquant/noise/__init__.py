"""Noise by address: key, purpose, image, chunk. No torch."""
