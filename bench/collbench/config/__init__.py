"""Read configurations: a YAML file in, a validated model out, or an error that states line by line what to change."""
