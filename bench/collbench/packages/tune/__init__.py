"""Tune the choice of algorithms in a library: write a table of rules, each proven on separate launches."""
