"""A web server on loopback whose answers take a while.

``python latency_server.py FOLDER DELAY_MS [MBIT_PER_SECOND [PORT]]`` prints its port. ``GET
/counts`` answers how many requests and bytes there were since it was asked last, how many requests
were open at a time, and in how many rounds the file was read that took most: a round begins with a
request for a file when no other for it is open.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path

from aiohttp import web


class Files:
    """The files of a folder, and ranges of them (RFC 9110, section 14).

    ``rate`` is how many bytes a second all answers share.
    """

    def __init__(self, folder: Path, delay: float, rate: float) -> None:
        self._folder, self._delay, self._rate = folder.resolve(), delay, rate
        self._line_is_free_at = 0.0
        self._open: Counter[str] = Counter()
        self._rounds: Counter[str] = Counter()
        self._counts = {"requests": 0, "bytes": 0, "at_once": 0}

    async def counts(self, request: web.Request) -> web.Response:
        """Tell what has been asked for, and begin to count anew."""
        found = dict(self._counts)
        rounds = max(self._rounds.values(), default=0)
        self._counts = dict.fromkeys(found, 0)
        self._rounds.clear()
        return web.json_response(found | {"rounds": rounds})

    async def answer(self, request: web.Request) -> web.Response:
        """Wait, then send a file or a range of it."""
        path = request.match_info["path"]
        self._rounds[path] += not self._open[path]
        self._open[path] += 1
        self._counts["requests"] += 1
        self._counts["at_once"] = max(self._counts["at_once"], self._open.total())
        try:
            await asyncio.sleep(self._delay)
            answer = self._sent(request)
            await asyncio.sleep(self._queue(len(answer.body or b"")))
            return answer
        finally:
            self._open[path] -= 1

    def _queue(self, nbytes: int) -> float:
        """Return the seconds until bytes have gone through the line, behind those before them."""
        now = time.monotonic()
        self._line_is_free_at = max(now, self._line_is_free_at) + nbytes / self._rate
        return self._line_is_free_at - now

    def _sent(self, request: web.Request) -> web.Response:
        path = (self._folder / request.match_info["path"]).resolve()
        if not path.is_relative_to(self._folder) or not path.is_file():
            return web.Response(status=404)
        size = path.stat().st_size
        headers = {"Accept-Ranges": "bytes", "ETag": f'"{path.stat().st_mtime_ns:x}"'}
        if request.method == "HEAD":
            return web.Response(headers={**headers, "Content-Length": str(size)})
        wanted = request.http_range
        if wanted.start is None and wanted.stop is None:
            begin, end, status = 0, size, 200
        else:
            begin, end, _ = wanted.indices(size)
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
            status = 206
        with path.open("rb") as file:
            file.seek(begin)
            body = file.read(end - begin)
        self._counts["bytes"] += len(body)
        return web.Response(status=status, body=body, headers=headers)


async def serve(folder: Path, delay: float, rate: float, port: int) -> None:
    """Serve until killed."""
    files = Files(folder, delay, rate)
    app = web.Application()
    app.router.add_get("/counts", files.counts)
    app.router.add_route("*", "/{path:.*}", files.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    mbit = float(sys.argv[3]) if len(sys.argv) > 3 else float("inf")
    port = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    asyncio.run(serve(Path(sys.argv[1]), float(sys.argv[2]) / 1000, mbit * 10**6 / 8, port))
