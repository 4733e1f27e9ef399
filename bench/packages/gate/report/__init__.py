"""What the gate concludes, for people and programs."""
