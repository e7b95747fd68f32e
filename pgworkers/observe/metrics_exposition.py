"""Metrics as text: Prometheus' own format, or OpenMetrics with a job as exemplar.

Written by hand because a scrape runs on the master's event loop: the prefix of each line is made once, and a scrape only
adds the numbers (docs/adr/30).
"""

from __future__ import annotations

from collections.abc import Iterable

from pgworkers.observe.metrics_catalog import MetricKind
from pgworkers.observe.metrics_series import Exemplar, Family, show_number

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
#: The last line of a page in OpenMetrics.
OPENMETRICS_END = b"# EOF\n"


def is_openmetrics_preferred(accept: str) -> bool:
    """True if the client prefers OpenMetrics, or accepts it equally."""
    liked = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.split(","):
        kind, *params = (word.strip().lower() for word in part.split(";"))
        if kind not in liked:
            continue
        quality = 1.0
        for param in params:
            name, _, value = param.partition("=")
            if name.strip() == "q":
                try:
                    quality = float(value)
                except ValueError:
                    quality = 0.0
        liked[kind] = max(liked[kind], quality)
    return (
        liked["application/openmetrics-text"] > 0
        and liked["application/openmetrics-text"] >= liked["text/plain"]
    )


def render_metrics(families: Iterable[Family], openmetrics: bool) -> bytes:
    out: list[str] = []
    for family in families:
        metric = family.metric
        name = metric.full_name
        if openmetrics and metric.kind == MetricKind.COUNTER:
            name = name.removesuffix("_total")
        out.append(f"# HELP {name} {_help(metric.help, openmetrics)}\n# TYPE {name} {metric.kind}\n")
        if metric.kind == MetricKind.HISTOGRAM:
            _histograms(out, family, openmetrics)
            continue
        for cell in family.series.values():
            if openmetrics and cell.exemplar is not None:
                out.append(f"{cell.line_prefix}{show_number(cell.value)}{_exemplar(cell.exemplar)}\n")
            else:
                out.append(f"{cell.line_prefix}{show_number(cell.value)}\n")
    text = "".join(out).encode()
    return text + OPENMETRICS_END if openmetrics else text


def _histograms(out: list[str], family: Family, openmetrics: bool) -> None:
    for histogram in family.histograms.values():
        counts = histogram.cumulative()
        heads, exemplars = histogram.line_prefixes, histogram.exemplars
        if openmetrics and exemplars:
            for at, count in enumerate(counts):
                exemplar = exemplars.get(at)
                out.append(f"{heads[at]}{count}{_exemplar(exemplar) if exemplar is not None else ''}\n")
        else:
            out.extend([f"{head}{count}\n" for head, count in zip(heads, counts, strict=False)])
        out.append(f"{heads[-2]}{counts[-1]}\n{heads[-1]}{show_number(histogram.total)}\n")


def _exemplar(exemplar: Exemplar) -> str:
    job, value, at = exemplar
    return f' # {{job="{job}"}} {show_number(value)} {at:.3f}'


def _help(text: str, openmetrics: bool) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if openmetrics else text
