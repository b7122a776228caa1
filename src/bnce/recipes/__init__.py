"""Recipes: families of runs as TOML files, and how one is resolved to the settings of a run."""
