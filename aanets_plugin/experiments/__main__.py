"""`python -m aanets_plugin.experiments` is the program `aanets`."""

from aanets_plugin.experiments.command import main

if __name__ == "__main__":
    main()
