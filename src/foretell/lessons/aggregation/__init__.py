"""E5: attention as a weighted sum, and forecasting any sequence."""
