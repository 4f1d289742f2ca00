"""From a model argument to a model: `load` finds it, wherever it lies."""
