"""One rank: join the others, call collectives, time them, verify the data. Runs in rank processes; loads torch."""
