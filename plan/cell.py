"""Run single cells with one server: cell.py 'keys --pinned' 'free --pinned' ...; run from a checkout."""
import os, sys, subprocess, shlex
sys.path.insert(0, os.path.join(os.getcwd(), "tests"))
from pathlib import Path
from bench.place import Place, SCRIPTS
root = Path(os.environ.get("CELLROOT", "/var/tmp/pgw-cells"))
place = Place(root, None)
with place.postgres() as v:
    print("postgres", v, place.pg_port, flush=True)
    for spec in sys.argv[1:]:
        env = place.environ() if hasattr(place, "environ") else dict(os.environ)
        env.update({k: os.environ[k] for k in ("PYTHONPATH",) if k in os.environ})
        r = subprocess.run([sys.executable, str(SCRIPTS / "store_pgworkers.py"), *shlex.split(spec)], env=env, capture_output=True, text=True, cwd=root)
        print(spec, "=>", r.stdout.strip()[-600:], r.stderr[-1500:] if r.returncode else "", flush=True)
