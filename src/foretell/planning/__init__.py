"""What a training or a generation will need, before it starts: memory, arithmetic, time and money, as ranges."""
