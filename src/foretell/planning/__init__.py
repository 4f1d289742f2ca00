"""Memory, arithmetic, time and money of a training or a generation before it starts, as ranges."""
