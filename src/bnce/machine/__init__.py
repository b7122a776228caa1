"""What the machine gives: devices and their memory, precision, threads, worker processes, signals."""
