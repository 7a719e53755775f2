"""Public data sets by name: readers of their files, where these are found, and how they are fetched."""
