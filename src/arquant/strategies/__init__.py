"""The strategies of this package; `arquant.strategy.find_strategy` gives them by name."""
