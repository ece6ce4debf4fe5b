"""The door's side at the farm's head."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import FileResponse, JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.background import BackgroundTask

from tunefarm.errors import FarmUnreachable, TunefarmError, UnknownJob, UsageError
from tunefarm.frontend.onnx_file import ImportLimits
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

Shown = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]
Wanted = Annotated[str, Query(max_length=256)]


def make_app(desk: HomeDesk, token: str) -> FastAPI:
    """Everything behind the token; nothing is described to whoever has none."""

    def authenticated(shown: Shown) -> None:
        given = shown.credentials.encode() if shown else b""
        if not secrets.compare_digest(given, token.encode()):
            raise HTTPException(401, headers={"WWW-Authenticate": "Bearer"})

    app = FastAPI(
        dependencies=[Depends(authenticated)], docs_url=None, redoc_url=None, openapi_url=None
    )
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

    @app.get(f"{PREFIX}/devices")
    def devices() -> list[dict[str, Any]]:
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
        found, size = hashlib.sha256(), 0
        with atomically(_model(desk, digest, file)) as output:
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise UsageError(f"{file} is larger than {most} bytes")
                found.update(part)
                output.write(part)
            if found.hexdigest() != digest:
                raise UsageError(f"{file} is not what was announced; send it again")

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

    def __init__(self, app: Callable[..., Any], frame: Frame) -> None:
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
