"""The machine that foretell runs on: devices, memory allocator, installed versions."""
