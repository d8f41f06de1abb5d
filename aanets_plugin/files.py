"""Files that a crash leaves as they were, or complete."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aanets_plugin.errors import FileWriteError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary name, which becomes `path` if the block raises no error.

    An error of the file system, such as a full disk, becomes a `FileWriteError`.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except Exception as error:
        if (cause := _file_system_error(error)) is None:
            raise
        raise write_error(path, cause) from error
    finally:
        if temporary.is_file():
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file. A crash leaves either the old file or the new one, never a part."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_error(path: Path, cause: OSError) -> FileWriteError:
    """The error of ours for one of the file system."""
    return FileWriteError(
        f"{path} cannot be written ({cause.strerror or cause}). What was there before is "
        f"unchanged. Make room, or use a folder that can be written to, and start again."
    )


def _file_system_error(error: BaseException | None) -> OSError | None:
    """The error of the file system that led to this one: torch.save raises another on top."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error
