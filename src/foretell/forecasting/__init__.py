"""Forecasting of numbers with the same decoder: a codec converts the values of a series to token ids and back."""
