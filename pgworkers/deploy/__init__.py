"""What a host needs around it: a systemd unit, Kubernetes manifests, a Dockerfile, a Procfile, written from the settings.

Pure texts: settings in, file out. `systemd` and `containers` write them, `around` is what each of them needs to know. Who
calls it: `pgworkers export`. The time a service manager must allow for a stop is the master's own (`master.drain.longest`),
so that no export can disagree with what the drain really does.
"""
