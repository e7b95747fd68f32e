"""rehouse.py ROOT MAP.tsv...: move, merge and split modules and rename module-level symbols over a whole repository.

MAP lines (tab separated; '#' begins a comment):
  module  old.dotted.module   new.dotted.module       default target of its symbols
  symbol  old.dotted.module.name   new.dotted.module.name
  order   new.dotted.module   old1 old2 ...           order of sources in a merged file (default: the order of the module lines)
  sqldir  old/dir  new/dir                            move *.sql
Module names are real modules (pkg/__init__.py is pkg.__init__ when it must move).
"""
from __future__ import annotations
import ast, re, sys, subprocess, builtins
from collections import defaultdict
from pathlib import Path

ROOT = Path(sys.argv[1])
MODULES: dict[str, str] = {}
SYMBOLS: dict[str, str] = {}
ORDER: dict[str, list[str]] = {}
SQL: dict[str, str] = {}
SQLDIRS: list[tuple[str, str]] = []
for f in sys.argv[2:]:
    for line in Path(f).read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.rstrip("\n").split("\t")
        if parts[0] == "module": MODULES[parts[1].strip()] = parts[2].strip()
        elif parts[0] == "symbol": SYMBOLS[parts[1].strip()] = parts[2].strip()
        elif parts[0] == "order": ORDER[parts[1].strip()] = parts[2].split()
        elif parts[0] == "sqldir": SQLDIRS.append((parts[1], parts[2]))
        elif parts[0] == "sql": SQL[parts[1].strip()] = parts[2].strip()
        elif parts[0] in ("attr", "param"): pass
        else: raise SystemExit(f"bad line {line!r}")

def git(*args): return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True).stdout
FILES = [Path(p) for p in git("ls-files").splitlines() if (ROOT / p).is_file() and not (ROOT / p).is_symlink()]
PY = [p for p in FILES if p.suffix == ".py" or (p.parts[0] in ("scripts", ".ci") and (ROOT / p).read_bytes().startswith(b"#!/usr/bin/env python"))]

def modname(p: Path) -> str:
    q = list(p.with_suffix("").parts)
    if q[-1] == "__init__": q = q[:-1]
    return ".".join(q)

PKG = {modname(p): p for p in PY if p.parts[0] == "pgworkers"}
SRC: dict[str, str] = {m: (ROOT / p).read_text() for m, p in PKG.items()}
TREE = {m: ast.parse(s) for m, s in SRC.items()}

def bound_names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)): return [node.name]
    if isinstance(node, ast.Assign):
        return [n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    if isinstance(node, (ast.AnnAssign, ast.AugAssign)) and isinstance(node.target, ast.Name): return [node.target.id]
    if isinstance(node, ast.TypeAlias if hasattr(ast, "TypeAlias") else ()): return [node.name.id]
    if isinstance(node, (ast.If, ast.Try, ast.For, ast.With)):
        out = []
        for sub in ast.iter_child_nodes(node):
            if isinstance(sub, ast.stmt): out += bound_names(sub)
        return out
    return []

DEFS = {m: {n for st in t.body if not isinstance(st, (ast.Import, ast.ImportFrom)) for n in bound_names(st)} for m, t in TREE.items()}
IMPORTED: dict[str, dict[str, str]] = {}
problems: list[str] = []

def newmod(m: str) -> str: return MODULES.get(m, m)
def place(m: str, s: str) -> tuple[str, str]:
    """New module and name of a symbol of an old module."""
    t = SYMBOLS.get(f"{m}.{s}")
    if t:
        a, b = t.rsplit(".", 1)
        return a, b
    return newmod(m), s
for k in SYMBOLS:
    a, b = k.rsplit(".", 1)
    if a not in DEFS: problems.append(f"map: no module for symbol {k}")
    elif b not in DEFS[a]: problems.append(f"map: no symbol {k}")
for k in MODULES:
    if k not in PKG: problems.append(f"map: no module {k}")

def is_pkg_module(name: str) -> bool: return name in PKG

# ---------------------------------------------------------------- scopes
class Scopes(ast.NodeVisitor):
    """Name nodes that refer to a module-level name of the file; per node also the enclosing function imports."""
    def __init__(self, tree: ast.Module):
        self.global_names: list[ast.Name] = []
        self.func_import_nodes: list = []
        self.stack: list[set[str]] = []
        self.visit_body(tree)
    def visit_body(self, tree):
        for st in tree.body: self.visit(st)
    def locals_of(self, fn) -> set[str]:
        names: set[str] = set(); globs: set[str] = set()
        a = fn.args
        for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs, *( [a.vararg] if a.vararg else []), *([a.kwarg] if a.kwarg else [])]: names.add(arg.arg)
        body = fn.body if isinstance(fn.body, list) else [fn.body]
        def walk(n):
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(n.name)
                return
            if isinstance(n, (ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)):
                for sub in ast.walk(n):
                    if isinstance(sub, ast.NamedExpr): names.add(sub.target.id)
                return
            if isinstance(n, ast.Global): globs.update(n.names)
            if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)): names.add(n.id)
            if isinstance(n, ast.ExceptHandler) and n.name: names.add(n.name)
            if isinstance(n, ast.MatchAs) and n.name: names.add(n.name)
            if isinstance(n, ast.MatchStar) and n.name: names.add(n.name)
            if isinstance(n, ast.MatchMapping) and n.rest: names.add(n.rest)
            if isinstance(n, (ast.Import, ast.ImportFrom)):
                pass  # handled as imports
            for c in ast.iter_child_nodes(n): walk(c)
        for st in body: walk(st)
        return names - globs
    def visit_FunctionDef(self, n): self.function(n)
    def visit_AsyncFunctionDef(self, n): self.function(n)
    def function(self, n):
        for d in n.decorator_list: self.visit(d)
        a = n.args
        for x in [*a.defaults, *[k for k in a.kw_defaults if k]]: self.visit(x)
        for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs, *( [a.vararg] if a.vararg else []), *([a.kwarg] if a.kwarg else [])]:
            if arg.annotation: self.visit(arg.annotation)
        if n.returns: self.visit(n.returns)
        self.stack.append(self.locals_of(n))
        for st in n.body: self.visit(st)
        self.stack.pop()
    def visit_Lambda(self, n):
        a = n.args
        for x in [*a.defaults, *[k for k in a.kw_defaults if k]]: self.visit(x)
        self.stack.append({arg.arg for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs, *( [a.vararg] if a.vararg else []), *([a.kwarg] if a.kwarg else [])]})
        self.visit(n.body); self.stack.pop()
    def comp(self, n):
        names = {x.id for g in n.generators for x in ast.walk(g.target) if isinstance(x, ast.Name)}
        self.visit(n.generators[0].iter)
        self.stack.append(names)
        for i, g in enumerate(n.generators):
            self.visit(g.target)
            if i: self.visit(g.iter)
            for c in g.ifs: self.visit(c)
        if isinstance(n, ast.DictComp): self.visit(n.key); self.visit(n.value)
        else: self.visit(n.elt)
        self.stack.pop()
    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = comp
    def visit_ClassDef(self, n):
        for x in [*n.decorator_list, *n.bases, *[k.value for k in n.keywords]]: self.visit(x)
        # class scope names are visible only directly in the body
        own = {b for st in n.body for b in bound_names(st)}
        for st in n.body:
            if isinstance(st, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)): self.visit(st)
            else:
                if isinstance(st, ast.AnnAssign):
                    self.visit(st.annotation)
                    if st.value is not None: self.visit(st.value)
                    continue
                if isinstance(st, ast.Assign):
                    self.visit(st.value); continue
                self.visit(st)
    def visit_Name(self, n):
        if not any(n.id in s for s in self.stack): self.global_names.append(n)

# ---------------------------------------------------------------- edits of one file
class Edits:
    def __init__(self, src: str):
        self.lines = [l.encode() for l in src.splitlines(keepends=True)]
        self.ops: list[tuple[int, int, int, int, bytes]] = []
    def replace(self, node, text: str, end=None):
        e = end or node
        self.ops.append((node.lineno - 1, node.col_offset, e.end_lineno - 1, e.end_col_offset, text.encode()))
    def apply(self) -> str:
        for l0, c0, l1, c1, t in sorted(set(self.ops), reverse=True):
            if l0 == l1:
                self.lines[l0] = self.lines[l0][:c0] + t + self.lines[l0][c1:]
            else:
                self.lines[l0] = self.lines[l0][:c0] + t + self.lines[l1][c1:]
                for i in range(l0 + 1, l1 + 1): self.lines[i] = b""
        return b"".join(self.lines).decode()

DOTTED = re.compile(r"pgworkers(?:\.[A-Za-z_][A-Za-z0-9_]*)+")
def map_dotted(text: str) -> str:
    parts = text.split(".")
    for n in range(len(parts), 1, -1):
        head = ".".join(parts[:n])
        if head in SYMBOLS: return ".".join([SYMBOLS[head], *parts[n:]])
        if head in PKG:
            if n < len(parts) and parts[n] in DEFS[head]:
                a, b = place(head, parts[n]); return ".".join([a, b, *parts[n + 1:]])
            return ".".join([newmod(head), *parts[n:]])
    # a package that vanished
    return text
PATHRE = re.compile(r"(?:pgworkers/)[A-Za-z0-9_/]+\.(?:py|sql)")
def map_path(text: str) -> str:
    if text.endswith(".sql"): return SQL.get(text, text)
    m = text[:-3].replace("/", ".")
    init = m.endswith(".__init__")
    if init: m = m[: -len(".__init__")]
    if m in MODULES:
        n = MODULES[m]
        return n.replace(".", "/") + ("/__init__.py" if init else ".py")
    return text

def import_line(mod: str, name: str, alias: str | None) -> str:
    return f"from {mod} import {name}" + (f" as {alias}" if alias and alias != name else "")

class File:
    """Rewrites references in one file. `me`: old module name, or None outside the package."""
    def __init__(self, src: str, me: str | None):
        self.src, self.me = src, me
        self.tree = ast.parse(src)
        self.edits = Edits(src)
        self.sc = Scopes(self.tree)
    def target_of_line(self, line: int) -> str | None:
        return None
    def run(self) -> tuple[str, dict[int, set[str]]]:
        """Returns new source; extra imports needed per old top-level statement index are computed by the caller via names."""
        me, tree, ed = self.me, self.tree, self.edits
        syms: dict[str, tuple[str, str]] = {}   # local -> (old module, symbol)
        mods: dict[str, str] = {}               # local -> old module
        rename: dict[str, str] = {}             # local name -> new local name
        # pass 1: imports
        imports = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
        for n in imports:
            if isinstance(n, ast.ImportFrom) and n.module and (n.module == "pgworkers" or n.module.startswith("pgworkers.")) and n.level == 0:
                for a in n.names:
                    full = f"{n.module}.{a.name}"
                    local = a.asname or a.name
                    if full in PKG: mods[local] = full
                    elif n.module in PKG and a.name in DEFS[n.module]: syms[local] = (n.module, a.name)
                    elif n.module in PKG:
                        # re-export: an imported name of that module
                        syms[local] = (n.module, a.name)
            elif isinstance(n, ast.Import):
                for a in n.names:
                    if a.name.startswith("pgworkers.") and a.asname and a.name in PKG: mods[a.asname] = a.name
        # module aliases: which attributes are used
        attr_nodes: dict[str, list[ast.Attribute]] = defaultdict(list)
        named: dict[str, list[ast.Name]] = defaultdict(list)
        gids = {id(n) for n in self.sc.global_names}
        for n in self.sc.global_names: named[n.id].append(n)
        parents = {}
        for n in ast.walk(tree):
            for c in ast.iter_child_nodes(n): parents[id(c)] = n
        for local in mods:
            for n in named.get(local, []):
                p = parents[id(n)]
                if isinstance(p, ast.Attribute) and p.value is n: attr_nodes[local].append(p)
        # pass 2: decide for module aliases
        extra: list[tuple[ast.stmt | None, str]] = []
        modlines: dict[str, list[tuple[str, str, str | None]]] = {}
        taken = set(named) | {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))}
        for local, old in mods.items():
            want: dict[str, None] = {}
            alias_of = None
            for n in imports:
                if isinstance(n, ast.ImportFrom):
                    for a in n.names:
                        if (a.asname or a.name) == local and f"{n.module}.{a.name}" == old: alias_of = a.asname
                elif isinstance(n, ast.Import):
                    for a in n.names:
                        if a.asname == local and a.name == old: alias_of = a.asname
            default = newmod(old)
            def local_for(t: str) -> str:
                if alias_of: return alias_of if t == default else alias_of + "_" + t.rsplit(".", 1)[1]
                return t.rsplit(".", 1)[1]
            seen_ids = set()
            for at in attr_nodes[local]:
                t, s = place(old, at.attr) if at.attr in DEFS[old] else (default, at.attr)
                seen_ids.add(id(at.value))
                want[t] = None
                ed.replace(at, f"{local_for(t)}.{s}") if not isinstance(parents.get(id(at)), ast.AugAssign) else None
            for n in named.get(local, []):
                if id(n) in seen_ids: continue
                # used as a value, e.g. setattr(mod, "NAME", ...)
                p = parents[id(n)]
                t = default
                if isinstance(p, ast.Call) and n in p.args and p.args.index(n) == 0 and len(p.args) > 1 and isinstance(p.args[1], ast.Constant) and isinstance(p.args[1].value, str) and p.args[1].value in DEFS[old]:
                    t, s = place(old, p.args[1].value)
                    if s != p.args[1].value: ed.replace(p.args[1], f'"{s}"')
                want[t] = None
                ed.replace(n, local_for(t))
            if not want: want[default] = None
            modlines[local] = [(t.rsplit(".", 1)[0], t.rsplit(".", 1)[1], local_for(t) if alias_of else None) for t in want]
        # pass 3: symbols
        for local, (m, s) in syms.items():
            t, new = place(m, s) if s in DEFS[m] else (newmod(m), s)
            aliased = any(isinstance(n, ast.ImportFrom) and n.module == m and any(a.name == s and a.asname == local and a.asname != a.name for a in n.names) for n in imports)
            if not aliased and new != local: rename[local] = new
        own: dict[str, str] = {}
        if me is not None:
            for s in DEFS[me]:
                t, new = place(me, s)
                if new != s: own[s] = new
        for old_local, new_local in {**rename, **own}.items():
            if new_local in taken and new_local not in rename and new_local not in own and new_local != old_local:
                problems.append(f"{me or self.path}: new name {new_local} (was {old_local}) is taken in this file")
            for n in named.get(old_local, []):
                p = parents[id(n)]
                ed.replace(n, new_local)
        # shadowing: a local variable with the new name
        for n in ast.walk(tree):
            if isinstance(n, ast.Name) and id(n) not in gids and n.id in set({**rename, **own}.values()) and isinstance(n.ctx, ast.Store):
                problems.append(f"{me or self.path}:{n.lineno}: local {n.id} shadows a renamed symbol")
        # definitions, global statements, __all__ strings
        for st in ast.walk(tree):
            if isinstance(st, ast.Global):
                names = [own.get(x, x) for x in st.names]
                if names != st.names: ed.replace(st, "global " + ", ".join(names))
        for st in tree.body:
            if isinstance(st, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and st.name in own:
                l = st.lineno - 1
                text = ed.lines[l].decode()
                kw = "class" if isinstance(st, ast.ClassDef) else "def"
                pos = text.index(f"{kw} {st.name}") + len(kw) + 1
                ed.ops.append((l, pos, l, pos + len(st.name), own[st.name].encode()))
        # pass 4: import statements
        for n in imports:
            if isinstance(n, ast.ImportFrom) and n.module and (n.module == "pgworkers" or n.module.startswith("pgworkers.")) and n.level == 0:
                ind = " " * n.col_offset
                out: list[str] = []
                for a in n.names:
                    local = a.asname or a.name
                    full = f"{n.module}.{a.name}"
                    if full in PKG and local in mods:
                        out += [import_line(p, b, al) for p, b, al in modlines[local]]
                    elif n.module in PKG and a.name in DEFS[n.module]:
                        t, new = place(n.module, a.name)
                        out.append(import_line(t, new, a.asname if a.asname and a.asname != a.name else (new if a.asname else None)) if not (a.asname and a.asname == a.name) else f"from {t} import {new} as {new}")
                    else:
                        out.append(import_line(newmod(n.module) if n.module in PKG else n.module, a.name, a.asname))
                ed.replace(n, ("\n" + ind).join(dict.fromkeys(out)))
            elif isinstance(n, ast.Import) and any(a.name in MODULES for a in n.names):
                ed.replace(n, "import " + ", ".join((newmod(a.name) if a.name in PKG else a.name) + (f" as {a.asname}" if a.asname else "") for a in n.names))
        allnames = {**rename, **own}
        for n in ast.walk(tree):
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "cast" and n.args and isinstance(n.args[0], ast.Constant) and isinstance(n.args[0].value, str):
                t = re.sub(r"[A-Za-z_]\w*", lambda m: allnames.get(m[0], m[0]), n.args[0].value)
                if t != n.args[0].value: ed.replace(n.args[0], '"' + t + '"')
            if me is not None and isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "beside" and len(n.args) == 2 and isinstance(n.args[1], ast.Constant):
                f = str(PKG[me].parent / (n.args[1].value + ".sql"))
                if f in SQL: ed.replace(n.args[1], '"' + Path(SQL[f]).stem + '"')
        # pass 5: strings
        in_f = {id(c) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for c in ast.walk(n)}
        for n in ast.walk(tree):
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in in_f and ("pgworkers." in n.value or "pgworkers/" in n.value):
                new = PATHRE.sub(lambda m: map_path(m[0]), DOTTED.sub(lambda m: map_dotted(m[0]), n.value))
                if new != n.value:
                    # replace inside the literal's text
                    if n.lineno == n.end_lineno:
                        raw = ed.lines[n.lineno - 1][n.col_offset:n.end_col_offset].decode()
                        ed.replace(n, PATHRE.sub(lambda m: map_path(m[0]), DOTTED.sub(lambda m: map_dotted(m[0]), raw)))
                    else:
                        for i in range(n.lineno - 1, n.end_lineno):
                            txt = ed.lines[i].decode()
                            t2 = PATHRE.sub(lambda m: map_path(m[0]), DOTTED.sub(lambda m: map_dotted(m[0]), txt))
                            if t2 != txt: ed.late = getattr(ed, "late", []) + [(txt, t2)]
        out = ed.apply()
        for a, b in getattr(ed, "late", []): out = out.replace(a, b)
        return out
    path: str = "?"

# ---------------------------------------------------------------- rewrite
out_texts: dict[Path, str] = {}
touched_modules = {m for m in PKG}
rewritten: dict[str, str] = {}
for m, p in PKG.items():
    f = File(SRC[m], m); f.path = str(p)
    rewritten[m] = f.run()
for p in PY:
    if p.parts[0] == "pgworkers": continue
    f = File((ROOT / p).read_text(), None); f.path = str(p)
    try: out_texts[p] = f.run()
    except Exception as e: problems.append(f"{p}: {e!r}"); raise

# ---------------------------------------------------------------- segments -> targets
def new_path(mod: str) -> Path:
    p = Path(mod.replace(".", "/"))
    return p / "__init__.py" if mod in PKG and PKG[mod].name == "__init__.py" and newmod(mod) == mod else p.with_suffix(".py")

targets: dict[str, list[tuple[str, str, list[str]]]] = defaultdict(list)  # new module -> (old module, segment text, bound names)
heads: dict[str, dict[str, list[str]]] = defaultdict(dict)              # new module -> imports
docs: dict[str, list[tuple[str, str]]] = defaultdict(list)
moved_any = set()
split_sources: dict[str, set[str]] = {}
for m in PKG:
    ts = {newmod(m)} | {place(m, s)[0] for s in DEFS[m]}
    split_sources[m] = ts
count_sources: dict[str, list[str]] = defaultdict(list)
for m, ts in split_sources.items():
    for t in ts: count_sources[t].append(m)

def needs_assembly(t: str) -> bool:
    return len(count_sources[t]) > 1 or any(len(split_sources[m]) > 1 for m in count_sources[t])

results: dict[Path, str] = {}
delete: set[Path] = set()
for m, p in PKG.items():
    t = newmod(m)
    if not needs_assembly(t) and split_sources[m] == {t}:
        np_ = p if t == m else (Path(t.replace(".", "/")).with_suffix(".py"))
        if p.name == "__init__.py" and t != m:
            np_ = Path(t.replace(".", "/")) / "__init__.py"
        results[np_] = rewritten[m]
        if np_ != p: delete.add(p)

def exec_names(node: ast.stmt) -> set[str]:
    """Names needed when the statement is executed at import."""
    found: set[str] = set()
    def go(n, deep=True):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for x in [*n.decorator_list, *n.args.defaults, *[k for k in n.args.kw_defaults if k]]: go(x)
            return
        if isinstance(n, ast.Lambda): return
        if isinstance(n, ast.AnnAssign):
            if n.value: go(n.value)
            return
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load): found.add(n.id)
        for c in ast.iter_child_nodes(n): go(c)
    go(node)
    return found

done_targets = set()
for t in list(count_sources):
    if not needs_assembly(t): continue
    sources = count_sources[t]
    order = ORDER.get(t)
    if order: sources = sorted(sources, key=lambda m: order.index(m) if m in order else 999)
    else:
        keys = list(MODULES)
        sources = sorted(sources, key=lambda m: (m != t, keys.index(m) if m in keys else -1))
    imports: list[str] = []; tc_imports: list[str] = []
    segs: list[tuple[ast.stmt, str, list[str], str]] = []
    docstrings: list[tuple[str, str]] = []
    for m in sources:
        src = rewritten[m]; tree = ast.parse(src); lines = src.splitlines(keepends=True)
        old_tree = TREE[m]
        body = tree.body
        prev_end = 0
        if ast.get_docstring(tree) is not None:
            doc = body[0]; prev_end = doc.end_lineno
            if newmod(m) == t: docstrings.append((m, ast.get_docstring(tree, clean=True)))
            body = body[1:]
        # names by old positions: rewritten statements are in the same order, but imports may have split
        old_body = [s for s in old_tree.body if not isinstance(s, (ast.Import, ast.ImportFrom))]
        if ast.get_docstring(old_tree) is not None: old_body = old_body[1:]
        new_body = [s for s in body if not isinstance(s, (ast.Import, ast.ImportFrom))]
        assert len(old_body) == len(new_body), m
        pair = {id(n): o for n, o in zip(new_body, old_body)}
        for st in body:
            start = st.lineno
            if isinstance(st, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and st.decorator_list:
                start = min(d.lineno for d in st.decorator_list)
            # leading comments belong to the statement
            seg_start = prev_end
            text = "".join(lines[seg_start:st.end_lineno])
            prev_end = st.end_lineno
            if isinstance(st, (ast.Import, ast.ImportFrom)):
                seg = "".join(lines[st.lineno - 1:st.end_lineno])
                if not (isinstance(st, ast.ImportFrom) and st.module == "__future__"):
                    imports.append(seg.rstrip("\n")); 
                continue
            o = pair[id(st)]
            if isinstance(st, ast.If) and isinstance(st.test, ast.Name) and st.test.id == "TYPE_CHECKING" and all(isinstance(x, (ast.Import, ast.ImportFrom)) for x in st.body):
                for x in st.body: tc_imports.append("".join(lines[x.lineno - 1:x.end_lineno]).strip("\n"))
                continue
            names = bound_names(o)
            places = {place(m, s)[0] for s in names} or {newmod(m)}
            if len(places) > 1: problems.append(f"{m}: one statement binds {names} with several targets {places}")
            if places == {t} or (t in places): segs.append((st, text, [place(m, s)[1] for s in names], m))
    # equal definitions stand once
    kept = []; have = {}
    for seg in segs:
        key = (tuple(seg[2]), ast.dump(seg[0]))
        if seg[2] and key in have: continue
        have[key] = 1; kept.append(seg)
    segs = kept
    # collisions
    seen: dict[str, str] = {}
    for st, text, names, m in segs:
        for n in names:
            if n in seen and seen[n] != m: problems.append(f"{t}: {n} comes from {seen[n]} and {m}")
            seen.setdefault(n, m)
    # order by dependency, stable
    defined_by = {n: i for i, (_, _, names, _) in enumerate(segs) for n in names}
    placed: list[int] = []; state = {}
    def put(i):
        if state.get(i) == 2: return
        if state.get(i) == 1: return
        state[i] = 1
        for n in sorted(exec_names(segs[i][0])):
            j = defined_by.get(n)
            if j is not None and j != i: put(j)
        state[i] = 2; placed.append(i)
    for i in range(len(segs)): put(i)
    # missing names: symbols that moved elsewhere and are used here without an import
    used = set()
    for st, *_ in segs:
        for n in ast.walk(st):
            if isinstance(n, ast.Name): used.add(n.id)
    here = {n for _, _, names, _ in segs for n in names}
    for m in sources:
        for s in DEFS[m]:
            a, b = place(m, s)
            if a != t and b in used and b not in here:
                imports.append(f"from {a} import {b}")
    text_imports = []
    for line in dict.fromkeys(imports):
        if re.match(rf"\s*from {re.escape(t)} import ", line): continue
        text_imports.append(line)
    tcs = [l for l in dict.fromkeys(x.strip() for x in tc_imports) if not re.match(rf"from {re.escape(t)} import ", l)]
    parts = []
    if docstrings:
        first = docstrings[0][1]
        body_doc = first + "".join("\n\n" + d for _, d in docstrings[1:])
        parts.append(f'"""{body_doc}\n"""\n' if "\n" in body_doc else f'"""{body_doc}"""\n')
    parts.append("\nfrom __future__ import annotations\n\n" + "\n".join(text_imports) + "\n")
    if tcs:
        parts.append("\nfrom typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n" + "".join(f"    {l}\n" for l in tcs))
    for i in placed: parts.append("\n" + segs[i][1].lstrip("\n") if False else segs[i][1])
    # module attributes used as alias.sym where alias is the target itself
    whole = "".join(parts)
    base = t.rsplit(".", 1)[1]
    pkg = t.rsplit(".", 1)[0]
    whole = re.sub(rf"^from {re.escape(pkg)} import {base}( as (\w+))?\n", lambda mm: f"#SELF {mm[2] or base}\n", whole, flags=re.M)
    for alias in set(re.findall(r"^#SELF (\w+)$", whole, flags=re.M)):
        whole = re.sub(rf"^#SELF {alias}\n", "", whole, flags=re.M)
        whole = re.sub(rf"(?<![\w.]){alias}\.(?=[A-Za-z_])", "", whole)
    first_old = t if t in PKG else sources[0]
    np_ = PKG[t] if t in PKG else Path(t.replace(".", "/")).with_suffix(".py")
    results[np_] = whole
for m, p in PKG.items():
    np_targets = {PKG[t] if t in PKG and t == m else Path(t.replace(".", "/")).with_suffix(".py") for t in split_sources[m]}
    if p not in results: delete.add(p)

CLASSES: dict[str, str] = {}
for m in PKG:
    for st in TREE[m].body:
        if isinstance(st, ast.ClassDef):
            CLASSES.setdefault(st.name, set()).add(place(m, st.name)[1])
CLASSES = {k: next(iter(v)) for k, v in CLASSES.items() if len(v) == 1 and next(iter(v)) != k}
TICK = re.compile(r"`([A-Z]\w+)(\.[\w.]+)?(\(\))?`")
def prose(text: str) -> str:
    return TICK.sub(lambda m: f"`{CLASSES[m[1]]}{m[2] or ''}{m[3] or ''}`" if m[1] in CLASSES else m[0], text)
# ---------------------------------------------------------------- write
if problems:
    print("\n".join(problems)); print(len(problems), "problems")
    if "--force" not in sys.argv and not any(a.endswith("force") for a in sys.argv): pass
if Path("/work/plan/DRY").exists(): raise SystemExit(1)
for p in delete:
    if p not in results: (ROOT / p).unlink()
for p, text in results.items():
    (ROOT / p).parent.mkdir(parents=True, exist_ok=True)
    text = prose(text)
    if not (ROOT / p).exists() or (ROOT / p).read_text() != text: (ROOT / p).write_text(text)
    init = (ROOT / p).parent / "__init__.py"
for p, text in out_texts.items():
    text = prose(text)
    if (ROOT / p).read_text() != text: (ROOT / p).write_text(text)
for a, b in SQL.items():
    if a == b or not (ROOT / a).exists(): continue
    (ROOT / b).parent.mkdir(parents=True, exist_ok=True)
    (ROOT / (b + ".new")).write_text((ROOT / a).read_text()); (ROOT / a).unlink()
for b in SQL.values():
    if (ROOT / (b + ".new")).exists(): (ROOT / (b + ".new")).rename(ROOT / b)
for a, b in SQLDIRS:
    (ROOT / b).mkdir(parents=True, exist_ok=True)
    for f in (ROOT / a).glob("*.sql"): f.rename(ROOT / b / f.name)
for p in FILES:
    if p.suffix in (".md", ".toml", ".yaml", ".yml", ".sh", "") and (ROOT / p).exists() and p not in PY:
        try: s = (ROOT / p).read_text()
        except UnicodeDecodeError: continue
        n = PATHRE.sub(lambda m: map_path(m[0]), DOTTED.sub(lambda m: map_dotted(m[0]), s))
        if n != s: (ROOT / p).write_text(n)
print("written", len(results), "modules; deleted", len([p for p in delete if p not in results]))
