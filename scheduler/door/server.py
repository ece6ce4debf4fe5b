"""The door's side at the farm's head."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.background import BackgroundTask
from starlette.types import ASGIApp, Receive, Scope, Send

from tunefarm.errors import FarmUnreachable, TunefarmError, UnknownJob, UsageError
from tunefarm.frontend.onnx.file import ImportLimits
from tunefarm.home import atomically
from tunefarm.scheduler.desk import HomeDesk, ask_command
from tunefarm.scheduler.door.wire import (
    DIGEST_HEADER,
    FILE_HEADER,
    PREFIX,
    Digest,
    FileName,
    Submission,
)

START_LIMIT_S = 20.0
LEAST_TOKEN = 32

Wanted = Annotated[str, Query(max_length=256)]


class Guard:
    """Nobody gets past it without the token, wherever they want to go; nothing is read of them."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            shown = dict(scope["headers"]).get(b"authorization", b"")
            if not secrets.compare_digest(shown, self._expected):
                await Response(status_code=401, headers=_WHO)(scope, receive, send)
                return
        await self._app(scope, receive, send)


_WHO = {"WWW-Authenticate": "Bearer", "Connection": "close"}


def make_app(desk: HomeDesk, token: str) -> ASGIApp:
    """Everything behind the token; nothing is described to whoever has none.

    Raises:
        UsageError: the token is too short to be one.
    """
    if len(token) < LEAST_TOKEN:
        raise UsageError(
            f"the door's token has {len(token)} characters",
            hint="Remove door.token: tunefarm up makes another.",
        )
    return Guard(make_routes(desk), token)


def make_routes(desk: HomeDesk) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(TunefarmError, _told)
    _offer_reading(app, desk)
    _offer_jobs(app, desk)
    return app


def _told(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TunefarmError)
    status = 404 if isinstance(error, UnknownJob) else 400
    return JSONResponse(error.document(), status)


def _offer_reading(app: FastAPI, desk: HomeDesk) -> None:
    @app.get(f"{PREFIX}/jobs")
    def jobs() -> list[dict[str, Any]]:
        return desk.jobs()

    @app.get(f"{PREFIX}/job")
    def job(wanted: Wanted) -> dict[str, Any]:
        return desk.job(wanted)

    @app.get(f"{PREFIX}/job/log")
    def log(wanted: Wanted) -> dict[str, Any]:
        return desk.log(wanted)

    looking = threading.Lock()

    @app.get(f"{PREFIX}/devices")
    def devices() -> list[dict[str, Any]]:
        with looking:  # that takes a process which joins the farm
            return desk.devices()

    @app.get(f"{PREFIX}/artifacts")
    def artifacts() -> list[dict[str, Any]]:
        return desk.artifacts()

    @app.get(f"{PREFIX}/artifact")
    def artifact(name: Wanted, alias: Wanted | None = None) -> FileResponse:
        place = tempfile.mkdtemp(prefix="tunefarm-door-")
        away = BackgroundTask(shutil.rmtree, place, ignore_errors=True)
        try:
            path, digest = desk.fetch(name, alias, Path(place))
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        headers = {DIGEST_HEADER: digest, FILE_HEADER: path.name}
        return FileResponse(path, headers=headers, background=away)


def _offer_jobs(app: FastAPI, desk: HomeDesk) -> None:
    @app.head(f"{PREFIX}/models/{{digest}}/{{file}}")
    def has_model(digest: Digest, file: FileName) -> None:
        if not _model(desk, digest, file).exists():
            raise HTTPException(404)

    @app.put(f"{PREFIX}/models/{{digest}}/{{file}}")
    async def put_model(digest: Digest, file: FileName, request: Request) -> None:
        """Kept when all of it has come, and is what its digest says."""
        most = ImportLimits().model_bytes
        path, size = _model(desk, digest, file), 0
        found, keeping = hashlib.sha256(), atomically(path)
        output = keeping.__enter__()
        try:
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise UsageError(f"{file} is larger than {most} bytes")
                await run_in_threadpool(found.update, part)
                await run_in_threadpool(output.write, part)
            if found.hexdigest() != digest:
                raise UsageError(f"{file} is not what was announced; send it again")
        except BaseException:
            keeping.__exit__(*sys.exc_info())
            with contextlib.suppress(OSError):
                path.parent.rmdir()
            raise
        await run_in_threadpool(keeping.__exit__, None, None, None)

    @app.post(f"{PREFIX}/jobs")
    def submit(wanted: Submission) -> dict[str, Any]:
        model = _model(desk, wanted.model, wanted.file)
        if not model.exists():
            raise UsageError(f"{wanted.file} has not been sent")
        assert desk.farm is not None
        where = [f"--farm={desk.farm['address']}", f"--token={desk.farm['token']}"]
        options = [*wanted.arguments(), *where, "--detach", "--json"]
        return ask_command(desk.home, ["submit", str(model), *options])

    @app.post(f"{PREFIX}/job/cancel")
    def cancel(wanted: Wanted) -> dict[str, Any]:
        return desk.cancel(wanted)

    @app.post(f"{PREFIX}/job/resume")
    def resume(wanted: Wanted) -> dict[str, Any]:
        return desk.resume(wanted)


def _model(desk: HomeDesk, digest: str, file: str) -> Path:
    return desk.home.models / digest / file


@dataclass(frozen=True)
class Frame:
    """Where the door is. With `certificate` and `key` (PEM files) it speaks TLS."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://{self.host}:{self.port}"


class Door:
    """Served by a thread of this process until `close`."""

    def __init__(self, app: ASGIApp, frame: Frame) -> None:
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                frame.host,
                frame.port,
                log_level="warning",
                ssl_certfile=frame.certificate,
                ssl_keyfile=frame.key,
            )
        )
        self._frame = frame
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        until = time.monotonic() + START_LIMIT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise FarmUnreachable(
                    f"nothing can listen at {frame.url}",
                    hint="Is the port taken? Another one: --door PORT",
                )
            time.sleep(0.05)

    def _serve(self) -> None:
        try:
            self._server.run()
        except SystemExit:
            return  # it has said why

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
