"""Find changes in a process that result from joining a process group, and stay after leaving. Does not import torch."""
