// primitives for peer_graphile.py: worker | producer (line protocol on stdin)
import { run, makeWorkerUtils, runMigrations, Logger } from "graphile-worker";
import fs from "node:fs"; import readline from "node:readline";
const DSN = `postgresql://postgres@127.0.0.1:${process.env.BENCH_PG_PORT || 54999}/bench_graphile`;
const [cmd, variant] = process.argv.slice(2);
const logger = new Logger(() => (lvl, msg) => { if (lvl === "error" || lvl === "warning") console.error(lvl, msg); });
const now = () => BigInt(Math.round((performance.timeOrigin + performance.now()) * 1000)) * 1000n;
const KIND = process.env.BENCH_KIND || "noop", ITERS = Number(process.env.BENCH_JS_ITERS || 0);
function spin(n) { let x = 0; for (let i = 0; i < n; i++) x += (i * i) % 7; return x; }
if (cmd === "worker") {
  const fd = fs.openSync(process.env.BENCH_REC, "a");
  const batched = variant.startsWith("batched"); const conc = variant === "c1" ? 1 : variant === "c2" ? 2 : 10;
  const preset = { worker: { connectionString: DSN, concurrentJobs: conc, maxPoolSize: Math.max(4, conc + 2), pollInterval: 2000,
    ...(batched ? { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } : {}) } };
  await run({ preset, logger, noHandleSignals: false, taskList: { job: (p) => {
    const s = now(); if (KIND === "cpu") spin(ITERS); const b = Buffer.alloc(24);
    b.writeBigInt64LE(BigInt(p.i), 0); b.writeBigInt64LE(s, 8); b.writeBigInt64LE(now(), 16); fs.writeSync(fd, b); } } });
} else if (cmd === "migrate") { await runMigrations({ connectionString: DSN, logger }); process.exit(0);
} else if (cmd === "calib") { spin(1e6); let n = 5e6; const ts=[]; for (let k=0;k<15;k++){const t = performance.now(); spin(n); ts.push(performance.now() - t);} ts.sort((a,b)=>a-b); console.log(Math.round(n * 50 / ts[7])); process.exit(0);
} else if (cmd === "barecpu") { for (let k = 0; k < Number(variant); k++) spin(ITERS); process.exit(0);
} else if (cmd === "producer") {
  const u = await makeWorkerUtils({ connectionString: DSN, logger });
  console.log("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [op, a, b] = line.split(" ");
    if (op === "one") { const s = now(); await u.addJob("job", { i: Number(a) }); console.log(s + " " + now()); }
    else if (op === "singles") { const t = performance.now(); for (let i = 0; i < Number(a); i++) await u.addJob("job", { i }); console.log((performance.now() - t) / 1000); }
    else if (op === "bulk") { const js = []; for (let i = Number(a); i < Number(b); i++) js.push({ identifier: "job", payload: { i } }); await u.addJobs(js); console.log("ok"); }
    else break;
  }
  await u.release(); process.exit(0);
}
