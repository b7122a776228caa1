"""Words added to a trained run, and runs that start from one."""
