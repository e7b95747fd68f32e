"""retype.py ROOT MAP.tsv...: rename attributes, fields, methods, enum members and keyword parameters by their types (mypy)."""
from __future__ import annotations
import ast, sys, os, re
from collections import defaultdict
from pathlib import Path
from mypy import build
from mypy.options import Options
from mypy.modulefinder import BuildSource
from mypy import nodes as N, types as T
from mypy.traverser import TraverserVisitor

ROOT = Path(sys.argv[1]).resolve()
ATTR: dict[str, dict[str, str]] = defaultdict(dict)   # class fullname -> old -> new
PARAM: dict[str, dict[str, str]] = defaultdict(dict)  # function fullname -> old -> new
for f in sys.argv[2:]:
    for line in Path(f).read_text().splitlines():
        p = line.split("\t")
        if p[0] == "attr":
            cls, a = p[1].rsplit(".", 1); ATTR[cls][a] = p[2].strip()
        elif p[0] == "param":
            m = re.match(r"([\w.]+)\((\w+)\)$", p[1]); PARAM[m[1]][m[2]] = p[2].strip()
os.chdir(ROOT)
opts = Options()
opts.python_version = (3, 13); opts.preserve_asts = True; opts.export_types = True; opts.incremental = False
opts.check_untyped_defs = True; opts.ignore_missing_imports = True; opts.follow_imports = "normal"; opts.namespace_packages = True
opts.explicit_package_bases = True; opts.mypy_path = [str(ROOT), *sorted({str(p) for p in (ROOT / "tests").rglob("*") if p.is_dir() and p.name not in ("__pycache__", "support", "model") and not (p / "__init__.py").exists()} | {str(ROOT / "tests")})]; opts.show_traceback = True
opts.allow_redefinition = True
opts.python_executable = sys.executable
files = [p for d in ("pgworkers", "tests", "examples") for p in (ROOT / d).rglob("*.py") if "__pycache__" not in p.parts and not ("bench/peers" in str(p))]
# scripts in Python without ending are copied beside themselves for the analysis
import subprocess
tracked = set(subprocess.run(["git","ls-files"],capture_output=True,text=True).stdout.splitlines())
files = [p for p in files if str(p.relative_to(ROOT)) in tracked]
scripts = {}
for p in sorted((ROOT / "scripts").iterdir()):
    if p.is_file() and p.read_bytes().startswith(b"#!/usr/bin/env python"):
        q = ROOT / f"zz_script_{p.name.replace('-', '_')}.py"; q.write_text(p.read_text().replace("from database.test_roles import", "from test_roles import")); scripts[q] = p; files.append(q)
PKGDIRS = {"support", "model"}
def mod(p: Path) -> str:
    rel = p.relative_to(ROOT)
    parts = list(rel.with_suffix("").parts)
    if parts[0] in ("tests", "examples"):
        q = p.parent
        keep = [p.stem]
        while (q / "__init__.py").exists() or q.name in PKGDIRS:
            keep.insert(0, q.name); q = q.parent
        parts = keep
        if p.stem == "conftest" and p.parent.name != "tests": parts = [p.parent.name + ".conftest"]
        if parts[0] in ("app",): parts = [p.parent.name + "_" + p.stem]
    if parts[-1] == "__init__": parts = parts[:-1]
    return ".".join(parts)
names = {}
sources = []
for p in files:
    m = mod(p)
    if not m or m in names: 
        if m: print("duplicate module", m, p)
        continue
    names[m] = p; sources.append(BuildSource(str(p.relative_to(ROOT)), m, None))
try:
    res = build.build(sources, opts)
finally:
    for q in scripts: q.unlink()
print("mypy messages:", len(res.errors))
types = res.types
ops: dict[Path, set[tuple[int, int, str, str]]] = defaultdict(set)  # file -> (line0, col, old, new)
problems: list[str] = []
applied: set[tuple[str, str]] = set()

def classes_of(t) -> list[N.TypeInfo]:
    t = T.get_proper_type(t)
    if t is None: return []
    if isinstance(t, T.Instance):
        out = [t.type]
        if t.type.fullname in ("builtins.type",): pass
        return out
    if isinstance(t, T.UnionType): return [c for i in t.items for c in classes_of(i)]
    if isinstance(t, T.TypeType): return classes_of(t.item)
    if isinstance(t, T.TupleType): return classes_of(t.partial_fallback)
    if isinstance(t, T.LiteralType): return classes_of(t.fallback)
    if isinstance(t, T.TypeVarType): return classes_of(t.upper_bound)
    if isinstance(t, T.CallableType):
        if t.is_type_obj(): return classes_of(t.ret_type)
        return []
    if isinstance(t, T.Overloaded):
        return classes_of(t.items[0]) if t.items and t.items[0].is_type_obj() else []
    if isinstance(t, T.TypedDictType): return []
    return []
def new_attr(cls: N.TypeInfo, name: str) -> str | None:
    for c in cls.mro:
        if name in ATTR.get(c.fullname, {}):
            applied.add((c.fullname, name)); return ATTR[c.fullname][name]
    # a base class in the map that overrides: subclasses defined elsewhere inherit by mro
    return None

class V(TraverserVisitor):
    def __init__(self, path: Path, src: str):
        self.path = path; self.lines = [l.encode() for l in src.splitlines()]
        self.tree = ast.parse(src)
        self.calls = defaultdict(list)
        for n in ast.walk(self.tree):
            if isinstance(n, ast.Call): self.calls[(n.lineno, n.col_offset)].append(n)
        self.defs = {}
        for n in ast.walk(self.tree):
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)): self.defs[(n.lineno, n.name)] = n
        self.cls: list[N.TypeInfo] = []
    def op(self, line: int, col: int, old: str, new: str, what=""):
        b = self.lines[line - 1]
        # mypy columns count characters of utf-8? ast columns are bytes; mypy takes them from ast
        if b[col:col + len(old)] != old.encode():
            # try to find it on this line
            hits = [m.start() for m in re.finditer(rb"(?<![A-Za-z0-9_])" + old.encode() + rb"(?![A-Za-z0-9_])", b)]
            if len(hits) == 1: col = hits[0]
            else:
                problems.append(f"{self.path}:{line}: {old} -> {new} not found at {col} ({what})"); return
        ops[self.path].add((line - 1, col, old, new))
    def visit_member_expr(self, o: N.MemberExpr):
        super().visit_member_expr(o)
        t = types.get(o.expr)
        cl: list[N.TypeInfo] = []
        if t is not None: cl = classes_of(t)
        if not cl and isinstance(o.expr, N.RefExpr) and isinstance(o.expr.node, N.TypeInfo): cl = [o.expr.node]
        for c in cl:
            new = new_attr(c, o.name)
            if new:
                self.op(o.end_line or o.line, (o.end_column or 0) - len(o.name), o.name, new, "member"); break
    def visit_super_expr(self, o):
        super().visit_super_expr(o)
        if o.info is not None:
            for c in o.info.mro:
                if o.name in ATTR.get(c.fullname, {}):
                    applied.add((c.fullname, o.name))
                    self.op(o.end_line, o.end_column - len(o.name), o.name, ATTR[c.fullname][o.name], "super"); break
    def visit_class_def(self, o: N.ClassDef):
        self.cls.append(o.info)
        for st in o.defs.body:
            self.class_stmt(o.info, st)
        super().visit_class_def(o)
        self.cls.pop()
    def class_stmt(self, info, st):
        if isinstance(st, N.AssignmentStmt):
            for lv in st.lvalues:
                for nm in ([lv] if isinstance(lv, N.NameExpr) else lv.items if isinstance(lv, N.TupleExpr) else []):
                    if isinstance(nm, N.NameExpr):
                        new = new_attr(info, nm.name)
                        if new: self.op(nm.line, nm.column, nm.name, new, "class field")
        elif isinstance(st, (N.FuncDef, N.Decorator)):
            self.fdef(info, st)
        elif isinstance(st, N.OverloadedFuncDef):
            for it in st.items: self.fdef(info, it)
            if st.impl and st.impl not in st.items: self.fdef(info, st.impl)
        elif isinstance(st, N.IfStmt):
            for b in st.body:
                for s in b.body: self.class_stmt(info, s)
    def fdef(self, info, st):
        fd = st.func if isinstance(st, N.Decorator) else st
        new = new_attr(info, fd.name)
        if isinstance(st, N.Decorator):
            for d in st.original_decorators:   # @name.setter
                if isinstance(d, N.MemberExpr) and isinstance(d.expr, N.NameExpr):
                    nn = new_attr(info, d.expr.name)
                    if nn: self.op(d.expr.line, d.expr.column, d.expr.name, nn, "setter")
        if new:
            for ln in range(fd.line, fd.line + 12):
                b = self.lines[ln - 1].decode()
                m = re.search(rf"\bdef {re.escape(fd.name)}\b", b)
                if m:
                    self.op(ln, len(b[:m.start()].encode()) + 4, fd.name, new, "def"); break
            else: problems.append(f"{self.path}:{fd.line}: def {fd.name} not found")
    def visit_func_def(self, o: N.FuncDef):
        full = o.fullname
        ren = PARAM.get(full)
        if ren:
            node = None
            for (ln, nm), n in self.defs.items():
                if nm == o.name and abs(ln - o.line) <= 12 and (node is None or abs(ln - o.line) < abs(node.lineno - o.line)): node = n
            if node is not None:
                a = node.args
                for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs]:
                    if arg.arg in ren:
                        applied.add((full, arg.arg))
                        ops[self.path].add((arg.lineno - 1, arg.col_offset, arg.arg, ren[arg.arg]))
                # uses inside (not shadowed by nested functions with the same parameter)
                def walk(n, active):
                    if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and n is not node:
                        aa = n.args
                        mine = {x.arg for x in [*aa.posonlyargs, *aa.args, *aa.kwonlyargs]}
                        for d in [*aa.defaults, *[k for k in aa.kw_defaults if k]]: walk(d, active)
                        act = active - mine
                        for s in (n.body if isinstance(n.body, list) else [n.body]): walk(s, act)
                        return
                    if isinstance(n, ast.Name) and n.id in active:
                        ops[self.path].add((n.lineno - 1, n.col_offset, n.id, ren[n.id]))
                    for c in ast.iter_child_nodes(n): walk(c, active)
                for s in node.body: walk(s, set(ren))
        super().visit_func_def(o)
    def visit_call_expr(self, o: N.CallExpr):
        super().visit_call_expr(o)
        kws = [n for n in o.arg_names if n]
        callee = o.callee
        # setattr(x, "name", …), getattr, monkeypatch.setattr(Class, "name", …)
        if len(o.args) >= 2 and isinstance(o.args[1], N.StrExpr):
            fn = callee.name if isinstance(callee, (N.NameExpr, N.MemberExpr)) else ""
            if fn in ("setattr", "getattr", "hasattr", "delattr", "object", "__setattr__"):
                t = types.get(o.args[0]); cl = classes_of(t) if t is not None else []
                if isinstance(o.args[0], N.RefExpr) and isinstance(o.args[0].node, N.TypeInfo): cl = [o.args[0].node]
                for c in cl:
                    new = new_attr(c, o.args[1].value)
                    if new: self.op(o.args[1].line, o.args[1].column + 1, o.args[1].value, new, "string"); break
        if not kws: return
        ren: dict[str, str] = {}
        def add_for_class(c: N.TypeInfo):
            for k in kws:
                init = c.get("__init__")
                for base in c.mro:
                    nm = base.fullname + ".__init__"
                    if k in PARAM.get(nm, {}): ren[k] = PARAM[nm][k]; break
                else:
                    if c.metadata.get("dataclass") or c.metadata.get("dataclass_tag") or c.is_named_tuple or "attrs" in c.metadata or any(b.is_named_tuple for b in c.mro) or any(b.metadata.get("dataclass") or b.metadata.get("dataclass_tag") for b in c.mro) or any(b.fullname == "msgspec.Struct" for b in c.mro):
                        n2 = new_attr(c, k)
                        if n2: ren[k] = n2
        if isinstance(callee, N.RefExpr) and isinstance(callee.node, N.TypeInfo): add_for_class(callee.node)
        elif isinstance(callee, N.RefExpr) and callee.fullname in ("dataclasses.replace", "msgspec.structs.replace") and o.args:
            for c in classes_of(types.get(o.args[0])): 
                for k in kws:
                    n2 = new_attr(c, k)
                    if n2: ren[k] = n2
        elif isinstance(callee, N.MemberExpr):
            t = types.get(callee.expr); cl = classes_of(t) if t is not None else []
            if isinstance(callee.expr, N.RefExpr) and isinstance(callee.expr.node, N.TypeInfo): cl = [callee.expr.node]
            for c in cl:
                if callee.name == "_replace":
                    for k in kws:
                        n2 = new_attr(c, k)
                        if n2: ren[k] = n2
                for b in c.mro:
                    pr = PARAM.get(f"{b.fullname}.{callee.name}", {})
                    for k in kws:
                        if k in pr: ren.setdefault(k, pr[k])
            if not cl and callee.fullname in PARAM:
                for k in kws:
                    if k in PARAM[callee.fullname]: ren[k] = PARAM[callee.fullname][k]
            tt = T.get_proper_type(types.get(callee)) if types.get(callee) is not None else None
            if not ren and isinstance(tt, T.CallableType) and tt.is_type_obj():
                for c in classes_of(tt): add_for_class(c)
        elif isinstance(callee, N.RefExpr):
            fn = callee.fullname
            pr = PARAM.get(fn, {})
            for k in kws:
                if k in pr: ren[k] = pr[k]
            tt = T.get_proper_type(types.get(callee)) if types.get(callee) is not None else None
            if not ren and isinstance(tt, T.CallableType) and tt.is_type_obj():
                for c in classes_of(tt): add_for_class(c)
            # partial(f, k=…)
        if isinstance(callee, N.RefExpr) and callee.fullname == "functools.partial" and o.args:
            f0 = o.args[0]
            if isinstance(f0, N.RefExpr):
                pr = PARAM.get(f0.fullname, {})
                for k in kws:
                    if k in pr: ren[k] = pr[k]
                if isinstance(f0.node, N.TypeInfo): add_for_class(f0.node)
        if ren:
            cand = [c for c in self.calls.get((o.line, o.column), []) if {k.arg for k in c.keywords} >= set(ren)]
            cand = [c for c in cand if len(c.keywords) == sum(1 for k in o.arg_kinds if k in (N.ARG_NAMED, N.ARG_STAR2))] or cand
            if not cand: problems.append(f"{self.path}:{o.line}: keywords {ren} not found"); return
            for k in cand[0].keywords:
                if k.arg in ren: ops[self.path].add((k.lineno - 1, k.col_offset, k.arg, ren[k.arg]))
    def visit_class_pattern(self, o):
        super().visit_class_pattern(o)
        ref = o.class_ref
        if isinstance(ref.node, N.TypeInfo):
            for k, pat in zip(o.keyword_keys, o.keyword_values):
                new = new_attr(ref.node, k)
                if new:
                    b = self.lines[pat.line - 1]
                    pre = b[:pat.column]
                    m = re.search(rb"(?<![A-Za-z0-9_])" + k.encode() + rb"\s*=\s*$", pre)
                    if m: ops[self.path].add((pat.line - 1, m.start(), k, new))
                    else: problems.append(f"{self.path}:{pat.line}: pattern keyword {k}")

byfile = {}
for m, p in names.items():
    f = res.files.get(m) if hasattr(res, "files") else None
    f = f or (res.graph[m].tree if m in res.graph else None)
    if f is None: problems.append(f"no tree for {m}"); continue
    real = scripts.get(p, p)
    v = V(real, real.read_text())
    f.accept(v)
for p, o in sorted(ops.items()):
    lines = [l.encode() for l in p.read_text().splitlines(keepends=True)]
    for ln, col, old, new in sorted(o, reverse=True):
        b = lines[ln]
        if b[col:col + len(old.encode())] != old.encode(): problems.append(f"{p}:{ln+1}: expected {old} at {col}"); continue
        lines[ln] = b[:col] + new.encode() + b[col + len(old.encode()):]
    p.write_text(b"".join(lines).decode())
unused = [(c, a) for c, d in ATTR.items() for a in d if (c, a) not in applied] 
print("renamed places:", sum(map(len, ops.values())), "in", len(ops), "files")
print("attributes never met:", len(unused)); print("\n".join(f"  {c}.{a}" for c, a in unused[:60]))
print("problems:", len(problems)); print("\n".join(problems[:150]))
