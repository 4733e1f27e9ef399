"""Draw conclusions from the facts that `store.read` returns; nothing here measures."""
