"""The formats of reports and comparisons, where nothing slow is imported."""

from typing import Literal

Format = Literal["html", "md", "latex", "csv"]
"""of a report: one self-contained page, or tables in the field's layout"""
TableFormat = Literal["text", "md", "latex", "csv"]
"""of the tables of a comparison"""
