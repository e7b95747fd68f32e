"""`pgworkers jobs`: list, show, change and wait for jobs."""
