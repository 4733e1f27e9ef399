"""Make plans: from a configuration and a machine, the cases in the order in which they are measured."""
