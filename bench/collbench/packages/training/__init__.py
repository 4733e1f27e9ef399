"""Steps of data-parallel training: the cost of synchronising gradients, advice on buckets, and equivalence proofs."""
