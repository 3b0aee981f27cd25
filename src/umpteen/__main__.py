"""`python -m umpteen` is `umpteen`."""

from umpteen.cli.main import main

if __name__ == "__main__":
    main()
