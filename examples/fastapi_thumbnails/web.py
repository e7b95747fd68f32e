"""A web server that takes pictures, and shows the progress of their thumbnails in the browser.

uvicorn --app-dir examples/fastapi_thumbnails --timeout-graceful-shutdown 5 web:web
"""

from __future__ import annotations

import secrets

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse
from jobs import PICTURES, jobs, make_thumbnails

from pgworkers.web import JobEventStream, events, lifespan

MAX_PICTURE_BYTES = 10 << 20
PAGE = """<!doctype html>
<title>Thumbnails</title>
<input type="file" id="file"> <progress id="bar" value="0"></progress> <span id="state"></span> <div id="made"></div>
<script>
file.onchange = async () => {
  const answer = await fetch("/pictures", {method: "POST", body: file.files[0]});
  const source = new EventSource(`/jobs/${(await answer.json()).job}/events`);
  const show = event => {
    const job = JSON.parse(event.data);
    state.textContent = job.state;
    if (job.fraction !== null) bar.value = job.fraction;
    return job;
  };
  source.addEventListener("state", show);
  source.addEventListener("progress", show);
  source.addEventListener("end", event => {
    source.close();
    for (const name of show(event).result ?? []) made.append(Object.assign(new Image(), {src: `/pictures/${name}`}));
  });
};
</script>"""

web = FastAPI(lifespan=lifespan(jobs))


@web.get("/", response_class=HTMLResponse)
async def page() -> str:
    return PAGE


@web.post("/pictures")
async def upload(request: Request, pause: float = 0.2) -> dict[str, int]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_PICTURE_BYTES:
            raise HTTPException(413, "the picture is larger than 10 MB")
    name = secrets.token_hex(8)
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / name).write_bytes(body)
    job = await make_thumbnails.aenqueue(name, pause=pause)
    return {"job": job.id}


@web.get("/jobs/{job_id}/events")
async def job_events(job_id: int) -> JobEventStream:
    return events(jobs.job(job_id), include_result=True)


@web.get("/pictures/{name}")
async def picture(name: str) -> FileResponse:
    path = PICTURES / name
    if "/" in name or not path.is_file():
        raise HTTPException(404, "there is no such picture")
    return FileResponse(path)
