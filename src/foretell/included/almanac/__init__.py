"""The forecaster included in foretell, with its recipe: `make almanac` trains it again."""
