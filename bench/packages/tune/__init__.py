"""Tune: tables of rules by which a library chooses its algorithms, each rule proven on launches of its own."""
