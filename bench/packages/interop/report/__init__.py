"""Write runs in the forms that other tools read."""
