"""The strategies of this package; `arquant.searching.strategy.find_strategy` gives them by name."""
