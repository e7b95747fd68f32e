"""`pgworkers bench`: measure this database with a real host."""
