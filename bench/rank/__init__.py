"""What one rank does: join, call collectives, time them, verify the data. Runs in rank processes; loads torch."""
