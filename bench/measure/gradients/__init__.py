"""Training steps on real ranks, with gradients synchronised in every way of `gradients.strategies`."""

# What torch loads when the first optimizer is made: two seconds of computing, which each rank would do for itself.
PRELOAD = ("torch._dynamo",)
