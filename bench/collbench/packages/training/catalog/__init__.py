"""Tables of training: strategies, preset models, trials of equivalence."""
