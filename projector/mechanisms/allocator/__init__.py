"""From live bytes to what the device must have: one file a strategy."""
