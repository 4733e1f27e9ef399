"""What the gradient benchmark shows: tables and pictures."""
