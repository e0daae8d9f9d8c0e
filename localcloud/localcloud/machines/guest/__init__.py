"""Programs of the machine's image: thin commands, and Google's start-up script runner."""
