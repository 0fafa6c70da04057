"""Files in and out: bounded reading, whole-or-nothing writing, typed documents. What is wrong is said all at once."""
