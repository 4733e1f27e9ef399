"""Where a reader finds a page of the documentation: the only place that knows it."""

# The address below which docs/ is published, with a slash at its end; empty while it is published nowhere.
ADDRESS = ""


def page(name: str) -> str:
    """How to read a page. name: its path below docs/, without suffix, such as `studies/gloo-stalls`."""
    return f"{ADDRESS}{name}/" if ADDRESS else f"collbench docs {name.rpartition('/')[2]}"
