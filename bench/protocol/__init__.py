"""What a parent process and its ranks share: connections, messages, the context of a rank, the barrier. No torch."""
