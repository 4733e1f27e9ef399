"""Write runs in the formats that other tools read."""
