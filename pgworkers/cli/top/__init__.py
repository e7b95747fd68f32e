"""`pgworkers top`: the live tree of all hosts in a terminal."""
