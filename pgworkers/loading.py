"""Which App a config means: the one it names, or the only one in it. A supervisor asks, `describe`, and the command line."""

from __future__ import annotations

from pgworkers.app import App
from pgworkers.declare.loading import import_config, names_file
from pgworkers.errors import AppNotLoaded
from pgworkers.process import interpreter


def load(config: str) -> App:
    """The App of `app.py`, `dir/app.py:name`, `pkg.mod:app` or `pkg.mod`; AppNotLoaded says why not."""
    interpreter.welcome()
    module, name = import_config(config)
    if name:
        found = getattr(module, name, None)
        if isinstance(found, App):
            return found
        what = "there is no such name" if found is None else f"it is a {type(found).__name__}, not an App"
        raise AppNotLoaded(f"{config}: no App called {name!r}: {what}")
    apps: dict[int, tuple[str, App]] = {}
    for key, value in vars(module).items():
        if isinstance(value, App):
            apps.setdefault(id(value), (key, value))
    match list(apps.values()):
        case [(_, app)]:
            return app
        case []:
            raise AppNotLoaded(f"{config}: no App in it; write `from pgworkers import App` and `app = App()`")
        case several:
            names = ", ".join(key for key, _ in several)
            raise AppNotLoaded(
                f"{config}: several Apps in it ({names}); say which one: {config}:{several[0][0]}"
            )


def name_of(app: App, config: str) -> str:
    """What titles call it: the name that it was given, else the module that was asked for, else its file."""
    if app.name != app.origin.name or names_file(config.rpartition(":")[0] or config):
        return app.name
    return config
