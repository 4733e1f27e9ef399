"""What runs in ranks that train."""
