import re
from pathlib import Path
def sub(p,*pairs):
    s=Path(p).read_text()
    for a,b in pairs:
        if a not in s: print("MISSING",p,repr(a)[:100]); continue
        s=s.replace(a,b)
    Path(p).write_text(s)
p=Path("pgworkers/options/retries.py"); s=p.read_text()
i=s.index("def read_retry_on"); s=re.sub(r"\bDuration\b","Delay",s[:i].replace("import Duration, read_duration","import XX, read_duration"))+s[i:]
s=s.replace("import XX, read_duration","import Duration, read_duration")
p.write_text(s)
sub("pgworkers/app.py",("from pgworkers.options.enqueue import ON_FAILED, OnFailed\n","from pgworkers.job.model import OnFailed\nfrom pgworkers.options.enqueue import ON_FAILED\n"))
sub("pgworkers/cli/api.py",("from pgworkers.options.enqueue import EnqueueOptions, OnConflict, OnFailed, read_enqueue_options\n","from pgworkers.job.model import OnConflict, OnFailed\nfrom pgworkers.options.enqueue import EnqueueOptions, read_enqueue_options\n"))
sub("pgworkers/supervisor/fork.py",("    report_page: int,","    page: int,"),("report_page.ReportPage(report_page) if report_page >= 0 else None","report_page.ReportPage(page) if page >= 0 else None"))
