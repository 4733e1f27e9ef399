"""Steps of data-parallel training: what synchronising gradients costs, advice on buckets, and equivalence."""
