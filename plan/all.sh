#!/bin/bash
# all.sh: apply everything to /work/wt/house from a clean checkout of main
set -e
cd /work/wt/house; git checkout -q -- . ; git clean -fdq pgworkers tests scripts; git merge -q --ff-only main 2>/dev/null || true
sed -i 's/from tests.process.play import/from play import/' tests/process/test_gathered_ends.py
sed -i 's/^from database.test_search_path import TRAP/from test_search_path import TRAP/' tests/database/test_roles.py
python3 - <<'PY'
p='pgworkers/declare/options.py'
s=open(p).read()
import re
a=s.index('OnConflict = Literal["return"'); b=s.index('OnFailed = Literal["cancel", "run", "wait"]')
s=s[:a]+s[b+len('OnFailed = Literal["cancel", "run", "wait"]\n'):] if False else s.replace('OnConflict = Literal["return", "replace", "raise"]\n','').replace('OnFailed = Literal["cancel", "run", "wait"]\n','')
s=s.replace('from pgworkers.','from pgworkers.job.new import OnConflict, OnFailed\nfrom pgworkers.',1)
open(p,'w').write(s)
PY
nice -n 10 /work/plan/v313/bin/python /work/plan/retype.py /work/wt/house /work/plan/map-{api,master,people,store,processes}.tsv > /tmp/retype.log 2>&1
tail -3 /tmp/retype.log
nice -n 10 /work/plan/v313/bin/python /work/plan/rehouse.py /work/wt/house /work/plan/map-{modules,api,master,people,store,processes}.tsv > /tmp/rehouse.log 2>&1 || true
tail -5 /tmp/rehouse.log
