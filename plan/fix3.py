import re
from pathlib import Path
def sub(p,*pairs):
    s=Path(p).read_text()
    for a,b in pairs:
        if a not in s: print("MISSING",p,repr(a)[:100]); continue
        s=s.replace(a,b)
    Path(p).write_text(s)
SYM={}
for f in Path("/work/plan").glob("map-*.tsv"):
    for l in f.read_text().splitlines():
        q=l.split("\t")
        if q[0]=="symbol": SYM[q[1]]=q[2]
# __all__ of play
s=Path("tests/process/play.py").read_text()
i=s.index("__all__ = [")
tail=s[i:]
for old in ("Dump","Resting","Stack","Stalled","Stop"):
    new=SYM.get(f"pgworkers.supervisor.messages.{old}")
    if new: tail=tail.replace(f'"{old}"',f'"{new.rsplit(".",1)[1]}"')
    else: print("no",old)
Path("tests/process/play.py").write_text(s[:i]+tail)
sub("tests/unit/test_dispatch.py",("now[0] += desk.ALONE","now[0] += queue_buffer."+SYM["pgworkers.master.desk.ALONE"].rsplit(".",1)[1]))
sub("tests/unit/test_plan.py",("    for attempt in range(1, 20):\n        plans.of(encode_order_header(order(attempt=attempt))","    for number in range(1, 20):\n        plans.of(encode_order_header(order(attempt=number))"))
s=Path("tests/database/test_read_plans.py").read_text()
s=s.replace("def queries(job: int)","def other_queries(job: int)")
Path("tests/database/test_read_plans.py").write_text(s)
s=Path("tests/process/test_describe.py").read_text()
s=s.replace("from pgworkers.supervisor import describe\n","").replace('monkeypatch.setattr(describe, "SLOW_IMPORT_SECONDS"','monkeypatch.setattr("pgworkers.supervisor.describe.SLOW_IMPORT_SECONDS"')
Path("tests/process/test_describe.py").write_text(s)
s=Path("pgworkers/cli/__init__.py").read_text()
i=s.index("from __future__"); Path("pgworkers/cli/__init__.py").write_text(s[:i].rstrip()+"\n")
sub("pyproject.toml",('pgworkers = "pgworkers.cli:main"','pgworkers = "pgworkers.cli.main:main"'))
