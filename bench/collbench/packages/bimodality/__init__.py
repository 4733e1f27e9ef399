"""Find cases with bimodal launches, and the facts that differ between the two groups. Does not import torch."""
