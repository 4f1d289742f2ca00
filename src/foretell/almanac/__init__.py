"""The forecaster that ships with foretell, with the recipe that made it: `make almanac` makes it again."""
