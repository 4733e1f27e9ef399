"""Check that every node of a job, and every case of a run, is good enough."""
