"""Runs side by side: what each of them says, how sure the difference is, and one sentence of verdict."""
