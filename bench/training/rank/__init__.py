"""What one rank of the training benchmark does: build models, synchronise gradients, time steps. Loads torch."""
