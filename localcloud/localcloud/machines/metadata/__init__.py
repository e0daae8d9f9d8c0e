"""The metadata server, one per machine: who the machine is, its settings and its tokens."""
