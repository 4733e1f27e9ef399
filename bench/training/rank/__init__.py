"""Run one rank of the training benchmark: build models, synchronise gradients, time steps. Loads torch."""
