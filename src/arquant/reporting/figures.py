"""Every figure that the data of a report allow, in the order of the page."""

from arquant.reporting.charts import Chart
from arquant.reporting.model import Report
from arquant.reporting.result_charts import accuracy, differences, outcomes, pareto, vote_shares
from arquant.reporting.search_charts import bits, candidates_by_cost, learning, sensitivities


def charts(report: Report) -> tuple[Chart, ...]:
    """Return the figures: what was certified first, then what it costs, then the search."""
    several = any(len(search.budgets) > 1 for search in report.searches)
    found = [outcomes(report), differences(report), accuracy(report), vote_shares(report)]
    found.insert(2 if several else 4, pareto(report))  # it is what several budgets were asked for
    drawn = [(place, entry) for place, entry in enumerate(report.entries) if entry.is_mixed or not several]
    found += [bits(entry, place) for place, entry in drawn]
    for place in range(len(report.searches)):
        found += [learning(report, place), candidates_by_cost(report, place)]
    found += sensitivities(report.sensitivity)
    return tuple(chart for chart in found if chart is not None)
