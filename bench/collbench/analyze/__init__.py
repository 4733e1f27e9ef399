"""Draw conclusions from the facts that `store.folders.read` returns; nothing here measures."""
