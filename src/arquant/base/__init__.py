"""What everything stands on: errors, progress, files, journals, run folders, provenance."""
