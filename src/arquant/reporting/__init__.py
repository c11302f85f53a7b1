"""The report of one or several runs: what was asked, what came out, what may be claimed, and the evidence."""
