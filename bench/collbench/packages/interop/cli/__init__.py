"""The verbs that read the output of other tools, or that take the same flags as another tool."""
