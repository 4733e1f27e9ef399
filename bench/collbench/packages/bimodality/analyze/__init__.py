"""Draw conclusions on modes of calls and of launches. Does not import torch."""
