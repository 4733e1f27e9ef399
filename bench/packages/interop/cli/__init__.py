"""The verbs that read what other tools wrote, or that are used as they are."""
