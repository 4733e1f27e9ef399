"""What follows from the gradient benchmark, from published tables and from training scripts. Measures nothing."""
