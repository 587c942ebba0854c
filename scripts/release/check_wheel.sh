#!/usr/bin/env bash
# Installs a wheel in a fresh venv and goes from nothing to a trained model that answers over HTTP: in a new home, without
# Rust in PATH, without a network.
#
#     scripts/release/check_wheel.sh WHEEL
set -euo pipefail
wheel=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/session" <<'SESSION'
set -euo pipefail
cd "$HOME"
! command -v cargo rustc || { echo "Rust is in PATH" >&2; exit 1; }
"$PYTHON" - <<'PYTHON'
import fcntl, socket, struct # `ip link set lo up`, without ip
request = struct.pack("16sh14x", b"lo", 1)
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8914, request)
try:
    socket.create_connection(("1.1.1.1", 443), timeout=3)
    raise SystemExit("there is a network")
except OSError:
    pass
PYTHON
"$PYTHON" -m venv "$HOME/venv"
"$HOME/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$WHEEL"
PATH=$HOME/venv/bin:$PATH
tinderbox --version
tinderbox train quickstart --set train.max_steps=50
tinderbox generate runs/quickstart --prompt "The bank of" --max-new-tokens 20
tinderbox eval runs/quickstart
tinderbox report runs/quickstart
tinderbox serve runs/quickstart --port 8099 &
server=$!
trap 'kill $server' EXIT
"$PYTHON" - <<'PYTHON'
import json, time, urllib.request
body = json.dumps({"model": "quickstart", "prompt": "The bank of", "max_tokens": 8}).encode()
request = urllib.request.Request("http://127.0.0.1:8099/v1/completions", body, {"content-type": "application/json"})
for attempt in range(50):
    try:
        answer = json.load(urllib.request.urlopen(request, timeout=30))
        break
    except urllib.error.URLError:
        time.sleep(0.2)
print("served:", answer["choices"][0]["text"])
PYTHON
SESSION
mkdir "$folder/home"
env -i HOME="$folder/home" PATH=/usr/local/bin:/usr/bin:/bin WHEEL="$wheel" PYTHON="$(python3 -c "import sys; print(sys.executable)")" \
    unshare --net --map-root-user bash "$folder/session"
echo "the wheel trains, writes and serves without Rust and without a network"
