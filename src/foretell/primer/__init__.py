"""The model that ships with foretell, with the recipe that made it: `make primer` makes it again."""
