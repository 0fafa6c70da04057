"""What issues a framework's kernels, and what that costs on the host: one file a strategy."""
