"""Forecasting of numbers with the same decoder: a codec turns the values of a series into token ids and back."""
