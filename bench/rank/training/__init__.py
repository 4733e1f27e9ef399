"""The training step on one rank: models, synchronisers, transports, and what must hold of them."""
