"""Start ranks, watch them and end them. Runs in parent processes, which never import torch and time no call."""
