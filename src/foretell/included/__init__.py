"""The trained models that come with foretell, and the recipes that make them."""
