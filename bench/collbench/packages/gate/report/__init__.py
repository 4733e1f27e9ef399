"""Write the conclusions of the gate, for people and programs."""
