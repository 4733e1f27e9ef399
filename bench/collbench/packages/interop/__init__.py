"""Work with other tools: import results of nccl-tests, rccl-tests and OSU; use nccl-tests' flags and columns."""
