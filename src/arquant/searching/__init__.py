"""From a budget to a certified model: strategies, scores, the loop, what ships."""
