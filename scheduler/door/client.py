"""The door's side at whoever uses the farm; nothing of Ray or the compiler is needed there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import requests

from tunefarm.errors import ArtifactTampered, FarmUnreachable, from_document
from tunefarm.home import atomically
from tunefarm.scheduler.door.wire import DIGEST_HEADER, FILE_HEADER, PREFIX, Submission, file_name

CONNECT_LIMIT_S, ANSWER_LIMIT_S = 10.0, 330.0
PART_BYTES = 1 << 20


class RemoteDesk:
    """See `desk.Desk`. A certificate of one's own is named in ``REQUESTS_CA_BUNDLE``.

    All of these raise `FarmUnreachable` where nobody answers, or not to this token.
    """

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._session = requests.Session()
        self._session.headers["Authorization"] = f"Bearer {token}"

    def jobs(self) -> list[dict[str, Any]]:
        return self._list("/jobs")

    def job(self, wanted: str) -> dict[str, Any]:
        return self._one("GET", "/job", params={"wanted": wanted})

    def log(self, wanted: str) -> dict[str, Any]:
        return self._one("GET", "/job/log", params={"wanted": wanted})

    def cancel(self, wanted: str) -> dict[str, Any]:
        return self._one("POST", "/job/cancel", params={"wanted": wanted})

    def resume(self, wanted: str) -> dict[str, Any]:
        return self._one("POST", "/job/resume", params={"wanted": wanted})

    def artifacts(self) -> list[dict[str, Any]]:
        return self._list("/artifacts")

    def devices(self) -> list[dict[str, Any]]:
        return self._list("/devices")

    def fetch(self, name: str, alias: str | None, into: Path) -> tuple[Path, str]:
        where = {"name": name, "alias": alias}
        with self._ask("GET", "/artifact", params=where, stream=True) as answer:
            path = into / file_name(answer.headers[FILE_HEADER])
            promised = int(answer.headers["Content-Length"])
            with atomically(path) as output:
                try:
                    for part in answer.iter_content(PART_BYTES):
                        output.write(part)
                except requests.RequestException as error:
                    raise self._unreachable(error) from error
                if output.tell() != promised:
                    raise ArtifactTampered(f"only {output.tell()} of {promised} bytes came")
            return path, answer.headers[DIGEST_HEADER]

    def send(self, model: IO[bytes], digest: str, file: str) -> bool:
        """A model's bytes, unless the farm has them already; whether it had not."""
        place = f"/models/{digest}/{file}"
        if self._answer("HEAD", place).status_code == 200:
            return False
        self._ask("PUT", place, data=_parts(model))
        return True

    def submit(self, wanted: Submission) -> dict[str, Any]:
        return self._one("POST", "/jobs", json=wanted.model_dump())

    def _one(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._ask(method, path, **options).json()
        return found

    def _list(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("GET", path).json()
        return found

    def _ask(self, method: str, path: str, **options: Any) -> requests.Response:
        answer = self._answer(method, path, **options)
        if answer.ok:
            return answer
        try:
            told = answer.json()
        except ValueError:
            told = {}
        if "error" in told:
            raise from_document(told)
        raise FarmUnreachable(
            f"{self._url} says {answer.status_code} {answer.reason} {told or ''}".rstrip(),
            hint="Is it a farm's door, of this version of tunefarm?",
        )

    def _answer(self, method: str, path: str, **options: Any) -> requests.Response:
        limits = (CONNECT_LIMIT_S, ANSWER_LIMIT_S)
        try:
            answer = self._session.request(
                method, f"{self._url}{PREFIX}{path}", timeout=limits, **options
            )
        except requests.RequestException as error:
            raise self._unreachable(error) from error
        if answer.status_code == 401:
            raise FarmUnreachable(
                f"{self._url} does not know this token",
                hint="Copy door.token of the head's home, and name it: --token FILE",
            )
        return answer

    def _unreachable(self, error: requests.RequestException) -> FarmUnreachable:
        return FarmUnreachable(
            f"{self._url} cannot be reached: {error}",
            hint="Is the farm up (tunefarm up says where its door is)?",
        )


def _parts(file: IO[bytes]) -> Iterator[bytes]:
    while part := file.read(PART_BYTES):
        yield part
