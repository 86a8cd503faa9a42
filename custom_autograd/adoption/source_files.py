"""Source files as text and back: their encoding, byte-order mark and line endings stay as they are."""

from __future__ import annotations

import io
import os
import shutil
import tokenize
from pathlib import Path


def read_source(path: Path) -> str:
    """Return the text of a file, with the line endings that it has.

    Bytes that are not in the encoding of the file become surrogates, which no parser accepts, and are written back.
    """
    contents = path.read_bytes()
    return contents.decode(_encoding_of(contents), errors="surrogateescape")


def write_source(path: Path, text: str) -> None:
    """Put a text in place of a file's, in the encoding of the file, and in one step: a full disk leaves the old text.

    Raises:
        OSError: it cannot be written; the error names the file.
    """
    contents = text.encode(_encoding_of(path.read_bytes()), errors="surrogateescape")
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_bytes(contents)
        shutil.copymode(path, unfinished)
        os.replace(unfinished, path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def _encoding_of(contents: bytes) -> str:
    try:
        return tokenize.detect_encoding(io.BytesIO(contents).readline)[0]
    except SyntaxError:  # it names an encoding that is not there, or is not in the one that it names
        return "utf-8"
