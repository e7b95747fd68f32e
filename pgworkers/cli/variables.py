"""Variables that look like ours but mean nothing: most likely a setting with a typing error in its name."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from pgworkers.settings import PREFIX, names

#: Read elsewhere than in the settings, or set by pgworkers itself for its processes.
_OTHERS = {PREFIX + name for name in ("CONFIG", "DEBUG", "FAULT", "TREE")}
_TESTS = PREFIX + "TEST"


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable PGWORKERS_* that nothing reads."""
    known = {PREFIX + name.upper() for name in names()} | _OTHERS
    strange = [
        name
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in known and not name.startswith(_TESTS)
    ]
    if not strange:
        return []
    known |= set(_of_options())  # imports every command, so only when there is something to look for
    return [_sentence(name, sorted(known)) for name in strange if name not in known]


def _of_options() -> Iterator[str]:
    """The variable of every option of every command."""
    from pgworkers.cli.reference import commands

    for _, command, ctx in commands():
        for parameter in command.params:
            if isinstance(parameter.envvar, str):
                yield parameter.envvar
            if ctx.auto_envvar_prefix and parameter.name:
                yield f"{ctx.auto_envvar_prefix}_{parameter.name.upper()}"


def _sentence(name: str, known: list[str]) -> str:
    rest = [one.removeprefix(PREFIX) for one in known]
    near = difflib.get_close_matches(name.removeprefix(PREFIX), rest, n=1, cutoff=0.7)
    hint = (
        f"did you mean {PREFIX}{near[0]}?" if near else "pgworkers config show --defaults lists those that do"
    )
    return f"{name} is set but means nothing; {hint}"
