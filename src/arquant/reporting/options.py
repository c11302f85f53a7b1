"""The formats of reports and comparisons, where nothing slow is imported."""

from typing import Literal

Format = Literal["html", "md", "latex", "csv", "card"]
"""of a report: one self-contained page, tables in the field's layout, or a model card"""
TableFormat = Literal["text", "md", "latex", "csv"]
"""of the tables of a comparison"""
