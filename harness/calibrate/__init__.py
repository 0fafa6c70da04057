"""What measured runs say of a projector: one law, one fold rule, one interval."""
