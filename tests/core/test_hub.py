"""huggingface_hub against a hub on this machine that keeps its files in a folder."""

from __future__ import annotations

import base64
import http.server
import json
import threading

import pytest
import torch

from aanets_plugin import from_hub, push_to_hub
from tests.core.hosts_setup import changed, converted, images
from tests.networks import HeadOverDictNet, tensors

pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path):
    """The address of a hub that speaks as much of the protocol as one small commit needs."""
    folder = tmp_path / "hub"

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            route = self.path.partition("?")[0]
            if route == "/api/repos/create":
                folder.mkdir()
                self.reply({"url": f"{address}/me/net"})
            elif route.endswith("/preupload/main"):
                paths = [file["path"] for file in json.loads(body)["files"]]
                files = [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]
                self.reply({"files": files})
            elif route.endswith("/commit/main"):
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        file = line["value"]
                        (folder / file["path"]).write_bytes(base64.b64decode(file["content"]))
                url = f"{address}/me/net/commit/{COMMIT}"
                self.reply({"success": True, "commitOid": COMMIT, "commitUrl": url})
            elif "/revision/" in route:
                names = [{"rfilename": file.name} for file in folder.iterdir()]
                self.reply({"id": "me/net", "sha": COMMIT, "siblings": names})
            elif "/tree/" in route:
                self.reply(
                    [
                        {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "0"}
                        for file in folder.iterdir()
                    ]
                )
            elif (folder / route.rpartition("/")[2]).is_file():
                self.reply((folder / route.rpartition("/")[2]).read_bytes())
            else:
                self.send_error(404)

        def reply(self, content):
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.send_header("Content-Type", "application/json")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{len(raw)}"')
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(raw)

        do_GET = do_HEAD = do_POST = answer

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield address
        server.shutdown()
        thread.join()


def test_a_model_goes_to_the_hub_and_comes_back(hub, tmp_path):
    model, x = converted(HeadOverDictNet).eval(), images(2)
    address = push_to_hub(model, "me/net", endpoint=hub, token="hf_secret", class_names="abcde")
    assert COMMIT in address
    files = sorted(file.name for file in (tmp_path / "hub").iterdir())
    assert files == ["aanet.json", "model.safetensors"]
    (tmp_path / "hub" / "other.bin").write_bytes(b"not asked for")

    cache = tmp_path / "cache"
    loaded = from_hub("me/net", HeadOverDictNet(), endpoint=hub, cache_dir=cache)
    assert not changed(loaded, model.state_dict())
    assert all(map(torch.equal, tensors(loaded(x)), tensors(model(x))))
    assert not list(cache.rglob("other.bin"))
    again = from_hub("me/net", HeadOverDictNet(), cache_dir=cache, local_files_only=True)
    assert not changed(again, model.state_dict())
