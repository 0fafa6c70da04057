"""Training logs, streamed: one file a dialect turns lines into typed events, one fold turns events into a record."""
