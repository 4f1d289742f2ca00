"""E3: the formal algorithms, from one query to a trained decoder that writes."""
