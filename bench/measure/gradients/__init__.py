"""Training steps on real ranks, with gradients synchronised in every way of `gradients.strategies`."""
