import re
from pathlib import Path
def sub(p,*pairs):
    s=Path(p).read_text()
    for a,b in pairs:
        if a not in s: print("MISSING",p,repr(a)[:100]); continue
        s=s.replace(a,b)
    Path(p).write_text(s)
names="boot_messages events lease_deadline connections finisher dispatcher claimer lost_claims lease_keeper housekeeper reloader operator_requests batch_completer statistics_writer systemd scaler supervisors leadership duties plan options settings".split()
alt="|".join(names)
# attributes of Host are public again: other modules use them
for p in [*Path("pgworkers/master").glob("*.py"), *Path("tests").rglob("*.py")]:
    s=p.read_text()
    n=re.sub(rf"\b((?:self\.)?_?host)\._({alt})\b", r"\1.\2", s)
    if p.name=="host.py" and "master" in p.parts:
        n=re.sub(rf"\bself\._({alt})\b", r"self.\1", n)
    if n!=s: p.write_text(n)
sub("pgworkers/context.py")
p=Path("pgworkers/worker/attempt.py"); s=p.read_text()
s=s.replace("    def cancelled(self) -> bool:","    def is_stop_requested(self) -> bool:",1).replace("    def reason(self) -> str:","    def stop_reason(self) -> str:",1).replace("    def remaining(self) -> float | None:","    def seconds_left(self) -> float | None:",1)
p.write_text(s)
sub("pgworkers/master/dispatcher.py",("super().accept(fresh)","super()._accept_new(fresh)"))
for f,n in (("scaling","on_event"),("drain","on_attempt_ended")):
    sub(f"pgworkers/master/{f}.py",(f"def {n}(","def __call__("))
sub("pgworkers/supervisor/worker_pool.py",("from pgworkers.supervisor import fork, limits, reaper","from pgworkers.supervisor import fork, reaper"))
s=Path("pgworkers/master/systemd.py").read_text()
s=s.replace('        status = "reloading" if self._is_reloading else status.title(host)','        text = "reloading" if self._is_reloading else status.title(host)').replace('        if status != self._status:\n            words["STATUS"] = status','        if text != self._status:\n            words["STATUS"] = text').replace("self._is_ready_sent, self._status = ready, status","self._is_ready_sent, self._status = ready, text")
Path("pgworkers/master/systemd.py").write_text(s)
s=Path("pgworkers/master/housekeeping.py").read_text()
s=s.replace("from pgworkers.job import burst, claim","from pgworkers.job import burst as burst_queries\nfrom pgworkers.job import claim")
for n in ("unfinished_work","UNFINISHED_SCAN_ROWS","jobs_left_behind","other_busy_hosts"):
    s=s.replace(f"burst.{n}",f"burst_queries.{n}")
Path("pgworkers/master/housekeeping.py").write_text(s)
sub("pgworkers/cli/queues.py",
 ("        run(db.conn, db.schema, scale_queue(","        run(db.conn, db.schema, scale_queue("))
s=Path("pgworkers/cli/queues.py").read_text()
for fn in ("scale_queue","set_retention","declare_queues","pause_queue, resume_queue"):
    first=fn.split(",")[0]
    i=s.index(f" {first}(")
    j=s.rfind("    from pgworkers.postgres.statements import run\n",0,i)
    s=s[:j]+f"    from pgworkers.job.queues import {fn}\n"+s[j:]
Path("pgworkers/cli/queues.py").write_text(s)
sub("pgworkers/cli/host_requests.py",("def wait_for_answers(db: OpenDatabase, requests: Sequence[int])","def wait_for_answers(db: OpenDatabase, request_ids: Sequence[int])"),("requests.read_answers(list(requests))","requests.read_answers(list(request_ids))"))
sub("pgworkers/cli/parameters.py",("from pgworkers.units import parse_duration\n",""),("        return parse_duration(value, what=\"time\")","        return units.parse_duration(value, what=\"time\")"),("from pgworkers.errors import UsageError\n","from pgworkers import units\nfrom pgworkers.errors import UsageError\n"),("if TYPE_CHECKING:\n    pass\n",""))
sub("pgworkers/cli/enqueue_job.py",("from pgworkers.app_import import import_app\n","from pgworkers import app_import\n"),("            return import_app(config)","            return app_import.import_app(config)"),("    from pgworkers.cli.enqueue_job import import_app\n\n",""))
s=Path("pgworkers/options/retries.py").read_text()
s=s.replace("Duration = float | str\n","Delay = float | str\n")
Path("pgworkers/options/retries.py").write_text(s)
for p in ("pgworkers/app.py","pgworkers/cli/api.py"):
    s=Path(p).read_text()
    m=re.search(r"from pgworkers.options.enqueue import \(?([^)\n]*(?:\n[^)]*)?)\)?\n",s)
    print(p,m and m[0])
