"""Parts that parents and ranks share: connections, messages, the context of a rank, the barrier. No torch."""
