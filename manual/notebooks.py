"""A notebook as a Markdown page: what it says, and its code without outputs."""

from __future__ import annotations

import json


def notebook_page(text: str) -> str:
    """Write the page of a notebook, which is given as the text of its file."""
    cells = [(cell["cell_type"], "".join(cell["source"]).strip()) for cell in json.loads(text)["cells"]]
    parts = [f"```python\n{source}\n```" if kind == "code" else source for kind, source in cells]
    return "\n\n".join(parts) + "\n"
