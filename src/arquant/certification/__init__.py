"""From a classifier and images to certificates: votes, smoothing, a resumable run."""
