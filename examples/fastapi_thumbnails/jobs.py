"""The jobs of the thumbnail service. `pgworkers run -c examples/fastapi_thumbnails/jobs.py` runs them."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from PIL import Image

from pgworkers import App, Ctx

jobs = App(name="thumbnails")
jobs.queue("default", workers=2)

PICTURES = Path(os.environ.get("THUMBNAILS", Path(tempfile.gettempdir()) / f"thumbnails-{os.getuid()}"))
SIZES = (32, 64, 128, 256)


@jobs.task(timeout="1m", memory="512MB", retries=2)
def make_thumbnails(ctx: Ctx, name: str, *, pause: float = 0.0) -> list[str]:
    """Make the thumbnails of one picture. `pause` makes it slow enough to watch."""
    made: list[str] = []
    with Image.open(PICTURES / name) as picture:
        for size in ctx.track(SIZES, total=len(SIZES)):
            small = picture.convert("RGB")
            small.thumbnail((size, size))
            file = f"{name}.{size}.png"
            small.save(PICTURES / file)
            made.append(file)
            time.sleep(pause)
    return made
