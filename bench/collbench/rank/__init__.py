"""Run one rank: join other ranks, call collectives, time them, verify the data. Runs in rank processes; loads torch."""
