"""`python -m bnce` is `bnce`."""

from bnce.cli import main

if __name__ == "__main__":
    main()
