import ast, re, sys
from pathlib import Path
from collections import defaultdict
SYM={}; ATTR=defaultdict(dict); MOD={}
for f in Path("/work/plan").glob("map-*.tsv"):
    for l in f.read_text().splitlines():
        p=l.split("\t")
        if p[0]=="symbol": SYM[p[1]]=p[2]
        if p[0]=="module": MOD[p[1]]=p[2]
for f in Path("/work/plan").glob("map-*.tsv"):
    for l in f.read_text().splitlines():
        p=l.split("\t")
        if p[0]=="attr":
            c,a=p[1].rsplit(".",1); m,n=c.rsplit(".",1)
            new=SYM.get(c, MOD.get(m,m)+"."+n).rsplit(".",1)[1]
            ATTR[new][a]=p[2]
for p in [*Path("pgworkers").rglob("*.py"),*Path("tests").rglob("*.py")]:
    s=p.read_text(); t=ast.parse(s); lines=s.splitlines(keepends=True); ch=False
    for c in ast.walk(t):
        if isinstance(c, ast.ClassDef):
            for st in c.body:
                if isinstance(st, ast.Assign) and any(isinstance(x,ast.Name) and x.id=="__slots__" for x in st.targets):
                    for k in ast.walk(st.value):
                        if isinstance(k, ast.Constant) and k.value in ATTR.get(c.name,{}):
                            l=k.lineno-1
                            lines[l]=re.sub(rf'(["\']){re.escape(k.value)}\1', lambda m: m[1]+ATTR[c.name][k.value]+m[1], lines[l]); ch=True; print(p,c.name,k.value)
    if ch: p.write_text("".join(lines))
