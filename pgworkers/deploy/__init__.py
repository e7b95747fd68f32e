"""Files for running a host: a systemd unit, a Dockerfile, Kubernetes manifests, a Procfile.

`pgworkers export` and `pgworkers init` print or write them. The texts are files in templates/; values come from the app and
its settings. The time that a service manager must allow for a stop is computed by the master
(`master.drain.max_stop_seconds`), so that an export cannot disagree with what a drain does.
"""
