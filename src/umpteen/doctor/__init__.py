"""What `umpteen doctor` looks at: the installation, this machine, and whether a recipe computes what it should."""
