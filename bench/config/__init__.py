"""Configurations: a YAML file in, a validated model out, or an error that says line by line what to change."""
