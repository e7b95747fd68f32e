"""The files in templates/, and those that need no settings: the Procfile and the first files of a project.

Separate from `render`, which loads the master: `pgworkers init` must not.
"""

from __future__ import annotations

from importlib import resources
from string import Template

from pgworkers.observe.escape import shell_command


def read_template(name: str) -> str:
    return (resources.files("pgworkers.deploy") / "templates" / name).read_text(encoding="utf-8")


def fill_template(template: str, /, **values: object) -> str:
    """A template with its placeholders filled in. `$$` in a template is a dollar sign."""
    return Template(read_template(template)).substitute(values)


def render_procfile(config: str) -> str:
    return fill_template("Procfile", command=shell_command("run", config=config))


def project_files() -> dict[str, str]:
    """The files of a new project by name, for `pgworkers init`."""
    return {
        "app.py": read_template("first_app.py"),
        "Procfile": render_procfile("app.py"),
        ".env.example": read_template("env.example"),
    }
