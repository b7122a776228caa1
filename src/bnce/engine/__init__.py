"""Networks as scoring uses them: ids in, numbers out; nothing here knows of words."""
