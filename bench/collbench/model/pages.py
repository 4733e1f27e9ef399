"""Give the address of a page of the documentation; no other module forms addresses."""

# Address at which docs/ is published, with a slash at its end; empty if docs/ is not published.
ADDRESS = ""


def page(name: str) -> str:
    """Return address or command of a page. name: its path in docs/ without suffix, such as `studies/gloo-stalls`."""
    return f"{ADDRESS}{name}/" if ADDRESS else f"collbench docs {name.rpartition('/')[2]}"
