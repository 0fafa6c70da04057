"""The types that every room of the harness passes to the next: measured runs and cases, predictions, result rows."""
