"""Plans: a configuration and a machine in, the cases in the order of measuring out."""
