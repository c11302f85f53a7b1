"""Recipes and the one loop that trains and fine-tunes."""
