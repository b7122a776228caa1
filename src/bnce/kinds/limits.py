"""Bounds that the command line shows in its help, apart from the settings, which take long to import."""

from __future__ import annotations

MAX_PROCESSES = 1024  # that one command starts
TIMEOUT_SECONDS = 120.0  # for which processes of one run wait for each other
