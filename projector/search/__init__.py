"""What to change: walks through the switches of a configuration, and remedies where memory does not suffice."""
