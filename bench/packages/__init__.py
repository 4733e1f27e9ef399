"""What CollBench can do beyond timing collectives. Each folder is one package: its rooms are named like the core's."""
