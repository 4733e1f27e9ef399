"""Other tools: results of nccl-tests, rccl-tests and OSU in, nccl-tests' flags and columns."""
