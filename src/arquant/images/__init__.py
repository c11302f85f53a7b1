"""Image sets and the readers of the formats they come in."""
