"""Turn the tables of master.md, people.md and api.md into map-*.tsv."""
import ast, re, sys
from pathlib import Path
ROOT = Path("/work/main")
MODS = {}
for p in (ROOT / "pgworkers").rglob("*.py"):
    q = list(p.relative_to(ROOT).with_suffix("").parts)
    if q[-1] == "__init__": q = q[:-1]
    MODS[".".join(q)] = ast.parse(p.read_text())
def top(m):
    out = set()
    for st in MODS[m].body:
        if isinstance(st, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)): out.add(st.name)
        elif isinstance(st, ast.Assign): out |= {n.id for t in st.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif isinstance(st, (ast.AnnAssign,)) and isinstance(st.target, ast.Name): out.add(st.target.id)
        elif isinstance(st, (ast.If, ast.Try)):
            for s in ast.walk(st):
                if isinstance(s, (ast.FunctionDef, ast.ClassDef)): out.add(s.name)
                if isinstance(s, ast.Assign): out |= {n.id for t in s.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return out
TOP = {m: top(m) for m in MODS}
def split(old):
    parts = old.split(".")
    for n in range(len(parts), 0, -1):
        m = ".".join(parts[:n])
        if m in MODS: return m, parts[n:]
    return None, parts
def convert(rows, modules, out, name):
    lines = [f"module\t{a}\t{b}" for a, b in modules.items()]
    bad = []
    for old, new in rows:
        old = old.strip().strip("`"); new = new.strip().strip("`")
        if new.startswith("("):
            m = re.search(r"until then: ([\w.]+)", new)
            if not m: continue
            nn = m[1]
            new = nn
        mp = re.match(r"([\w.]+)\((\w+)=?\)$", old)
        if mp:
            f, par = mp[1], mp[2]
            np_ = re.match(r".*\((\w+)=?\)$", new)
            newp = np_[1] if np_ else new.rsplit(".", 1)[-1]
            if newp != par: lines.append(f"param\t{f}({par})\t{newp}")
            continue
        new = re.sub(r"\s.*$", "", new)
        m, rest = split(old)
        if m is None or not rest:
            if old != new and old in MODS: modules.setdefault(old, new); lines.append(f"module\t{old}\t{new}")
            elif old not in MODS: bad.append(f"? {old} -> {new}")
            continue
        if rest[0] not in TOP[m]: bad.append(f"no top {old} -> {new}"); continue
        if len(rest) == 1:
            tgt = new if "." in new else None
            if tgt is None: tgt = modules.get(m, m) + "." + new
            elif not tgt.startswith("pgworkers."): tgt = modules.get(m, m) + "." + tgt.rsplit(".", 1)[1]
            lines.append(f"symbol\t{old}\t{tgt}")
        else:
            na = new.rsplit(".", 1)[-1]
            if na != rest[-1]: lines.append(f"attr\t{old}\t{na}")
    Path(out).write_text("\n".join(dict.fromkeys(lines)) + "\n")
    print(name, len(lines), "lines;", len(bad), "bad"); print("\n".join(bad[:40]))

# people
rows, modules = [], {}
txt = Path("people.md").read_text()
block = txt[txt.index("## 2.4 The list"):txt.index("## 2.5 CLI, JSON")]
for line in block.splitlines():
    m = re.match(r"^(\s*)(pgworkers[\w.()=]*) -> (.+?)\s*$", line)
    if not m: 
        if line.strip() and not line.startswith(("```","#")) : print("people?", line[:150])
        continue
    if not m[1] and m[2] in MODS:
        if m[3] != m[2] and not m[3].startswith("("): modules[m[2]] = m[3].split()[0]
    else: rows.append((m[2], m[3]))
convert(rows, modules, "map-people.tsv", "people")
# api
rows, modules = [], {}
txt = Path("api.md").read_text()
block = txt[txt.index("### 2.1 Machine-readable"):txt.index("### 2.2 Parameters")]
for line in block.splitlines():
    if "\t" in line:
        a, b = line.split("\t")[:2]; rows.append((a, b))
convert(rows, modules, "map-api.tsv", "api")
# master
rows, modules = [], {}
txt = Path("master.md").read_text()
block = txt[txt.index("## 2.1 Rows"):txt.index("## 2.2 Local variables")]
for line in block.splitlines():
    m = re.match(r"^\| `([^`]+)` \| (.+?) \| (.+?) \|$", line)
    if m: rows.append((m[1], m[2]))
    elif line.startswith("| `"): print("master?", line[:160])
convert(rows, modules, "map-master.tsv", "master")
