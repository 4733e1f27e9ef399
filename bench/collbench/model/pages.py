"""Give addresses of pages and files of CollBench; no other module forms addresses.

`setup.py` puts them into the metadata, and `mkdocs.yml` into the site.
"""

from collbench import __version__

# Address at which docs/ is published, with a slash at its end; empty if docs/ is not published.
ADDRESS = ""
# Address of the repository on GitHub, without a slash at its end; empty if it is not published.
REPOSITORY = ""


def page(name: str) -> str:
    """Return address or command of a page. name: its path in docs/ without suffix, such as `studies/gloo-stalls`."""
    return f"{ADDRESS}{name}/" if ADDRESS else f"collbench docs {name.rpartition('/')[2]}"


def source(path: str) -> str:
    """Return the address of a file of the repository, as it is in this version; empty without a repository."""
    return f"{REPOSITORY}/blob/v{__version__}/{path}" if REPOSITORY else ""
