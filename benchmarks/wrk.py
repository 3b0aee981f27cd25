"""The same load by wrk, where it is installed: it takes next to nothing of the processor that both have to share."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.load import Load, measured

_SCRIPT = """
local bodies = {bodies}
local turn = 0
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
request = function()
  turn = turn + 1
  return wrk.format(nil, nil, nil, bodies[turn % #bodies + 1])
end
done = function(summary, latency, requests)
  local failed = summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout
  io.write(string.format("OUTCOME %d %d %d %f %f\\n", summary.requests, summary.duration, failed,
    latency:percentile(50), latency:percentile(99)))
end
"""


def installed() -> bool:
    return shutil.which("wrk") is not None


def fastest(load: Load) -> dict[str, Any]:
    """As many requests as the service answers: by wrk, or by our own generator without it."""
    if not installed():
        return measured(load)
    with TemporaryDirectory(prefix="umpteen-wrk-") as folder:
        script = Path(folder, "requests.lua")
        # JSON's strings are Lua's, but for escapes of characters that JSON can write as they are.
        bodies = ", ".join(json.dumps(body, ensure_ascii=False) for body in load.bodies)
        script.write_text(_SCRIPT.replace("{bodies}", "{" + bodies + "}"), encoding="utf-8")
        seconds = max(1, round(load.seconds))
        # Slow answers are no failures: what waits longer than its two seconds, wrk would count as one.
        options = ["-t1", f"-c{load.connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(script)]
        address = f"http://127.0.0.1:{load.port}{load.path}"
        child = subprocess.run(["wrk", *options, address], capture_output=True, text=True, check=True)
    found = re.search(r"OUTCOME (\d+) (\d+) (\d+) ([\d.]+) ([\d.]+)", child.stdout)
    if found is None:
        raise RuntimeError(f"wrk said something else: {child.stdout[-400:]}{child.stderr[-400:]}")
    requests, microseconds, failed = map(int, found.groups()[:3])
    return {
        "requests": requests,
        "failed": failed,
        "requests_per_second": requests / (microseconds / 1e6),
        "p50_ms": float(found[4]) / 1000,
        "p99_ms": float(found[5]) / 1000,
    }
