"""A systemd unit. Each line that is not obvious says why."""

from __future__ import annotations

from pgworkers.deploy.around import Around


def unit(app: Around, *, program: str, user: str, directory: str, environment: str) -> str:
    said = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in app.said.items())
    return f"""\
# {app.name}.service, made by `pgworkers export systemd`. Install:
#   pgworkers export systemd > /etc/systemd/system/{app.name}.service
#   systemctl daemon-reload && systemctl enable --now {app.name}
# DATABASE_URL and other secrets belong into {environment} (mode 0600), one NAME=value a line.
[Unit]
Description=pgworkers {_percent(app.config)}
Wants=network-online.target
After=network-online.target postgresql.service

[Service]
# READY comes when a worker waits for jobs; STATUS shows in `systemctl status`.
Type=notify
NotifyAccess=main
ExecStart={_quoted(program)} --config {_quoted(app.config)} run
ExecReload=/bin/kill -HUP $MAINPID
User={user}
WorkingDirectory={_percent(directory)}
EnvironmentFile=-{_percent(environment)}
{said}\
# Only the master gets SIGTERM: it drains, and ends its workers itself.
KillMode=mixed
# Connecting and importing the app, twice.
TimeoutStartSec={app.start}
# drain + stop graces + writing what is left, and a margin: later systemd kills, and running jobs count as lost.
TimeoutStopSec={app.stop}
# The master's loop feeds it, whatever the database does.
WatchdogSec=60
Restart=on-failure
RestartSec=2
# A wrong command line, and an app that cannot be imported, are not mended by trying again.
RestartPreventExitStatus=2 6
# One worker that is out of memory costs one attempt, not the host.
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=65536
# A core dump would hold arguments of jobs and the password of the database.
LimitCORE=0

# What neither the tree nor most handlers need. Handlers that write outside /tmp want ReadWritePaths=; those that call
# sudo want NoNewPrivileges=no.
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
LockPersonality=yes

[Install]
WantedBy=multi-user.target
"""


def _percent(text: str) -> str:
    """systemd reads % as a specifier."""
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """One word of a command line, or an assignment."""
    text = _percent(word)
    if all(c.isalnum() or c in "/._-=:,@+" for c in text.replace("%%", "")):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"'
