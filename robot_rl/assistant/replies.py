"""Answers of a model in a folder, by the hash of what was asked: a second question needs no network.

<sha256>.json   {"request": ..., "answer": ...}
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from robot_rl.util import strict_json
from robot_rl.util.errors import UserError
from robot_rl.util.files import replace_file

Request = dict[str, Any]


class Replies:
    """A folder of answers; it also holds those that somebody stored there, for tests and for use without a model."""

    def __init__(self, folder: Path):
        self.folder = folder

    def file(self, request: Request) -> Path:
        """Return where the answer to a request is, or would be."""
        text = json.dumps(request, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"

    def get(self, request: Request) -> str | None:
        """Return a stored answer, or None; UserError for a damaged file."""
        file = self.file(request)
        try:
            found = json.loads(file.read_bytes())["answer"]
            if not isinstance(found, str) or not found.strip():
                raise ValueError("it holds no answer")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{file} is damaged ({error}); remove it, and the model is asked again") from None
        return found

    def put(self, request: Request, answer: str) -> Path:
        """Store an answer by atomic rename; return its file."""
        file = self.file(request)
        replace_file(file, strict_json.dumps({"request": request, "answer": answer}, indent=2).encode())
        return file
