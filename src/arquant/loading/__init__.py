"""Every spelling of MODEL and DATA, and which images a run may use for what."""
