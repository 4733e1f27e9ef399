"""Code that runs in ranks that train."""
