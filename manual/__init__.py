"""What the manual is built with, beside MkDocs: `make docs` runs it, and nothing of it is installed."""
