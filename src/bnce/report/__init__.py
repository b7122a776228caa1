"""The paper's table and an HTML page with plots, from nothing but the files in run directories."""
