"""Generate the pages of docs/reference from the code. `scripts/gen-docs` writes them."""
