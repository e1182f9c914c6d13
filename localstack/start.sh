#!/usr/bin/env bash
#
# Starts MiniStack, an emulator of AWS, on 127.0.0.1 for those without Docker,
# and prints the environment that makes programs use it. The first run installs
# it below the user's cache directory, where the tests find it too.
#
#   localstack/start.sh                  # in one terminal; ends with Ctrl-C
#   eval "$(localstack/start.sh --env)"  # in another one: AWS_ENDPOINT_URL and so on
#
# GATEWAY_PORT chooses a port other than 4566, and PYTHON another interpreter. It
# needs only Python 3.10 or later. Its data is lost when it ends.

set -euo pipefail

port=${GATEWAY_PORT:-4566}
python=${PYTHON:-python3}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
requirements=$root/test/awslocal/emulators/ministack/requirements.txt
endpoint=http://127.0.0.1:$port

print_env() {
	echo "export AWS_ENDPOINT_URL=$endpoint"
	echo "export AWS_REGION=us-east-1"
	echo "export AWS_ACCESS_KEY_ID=test"
	echo "export AWS_SECRET_ACCESS_KEY=test"
}

fail() {
	echo "start.sh: $*" >&2
	exit 1
}

case ${1:-} in
--env) print_env && exit ;;
"") ;;
*) fail "the only argument is --env" ;;
esac

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
	fail "$python is not Python 3.10 or later; set PYTHON to one that is"

# The same directory as in test/awslocal/install.go, named after the hash of the requirements.
case $(uname -s) in
Darwin) cache=$HOME/Library/Caches ;;
*) cache=${XDG_CACHE_HOME:-$HOME/.cache} ;;
esac
id=$("$python" -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest()[:12])' "$requirements")
home=$cache/mcp-events/ministack-$id

if [ ! -d "$home" ]; then
	echo "start.sh: installing MiniStack from PyPI into $home; this is done once" >&2
	mkdir -p "$cache/mcp-events"
	temp=$(mktemp -d "$cache/mcp-events/ministack-installing-XXXXXX")
	trap 'rm -rf "$temp"' EXIT
	cp "$requirements" "$temp"
	"$python" -m venv "$temp/venv"
	"$temp/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -r "$requirements"
	# Rename the directory when it is complete. If another process was faster, the
	# rename would move our directory into theirs.
	[ -d "$home" ] || mv "$temp" "$home"
	rm -rf "$temp"
	trap - EXIT
fi

if "$python" -c 'import socket, sys; sys.exit(socket.socket().connect_ex(("127.0.0.1", int(sys.argv[1]))))' "$port" 2>/dev/null; then
	fail "port $port of 127.0.0.1 is already in use; set GATEWAY_PORT to another port"
fi

# Without the mutual TLS listener for IoT, and only for this machine.
BIND_HOST=127.0.0.1 GATEWAY_PORT=$port IOT_MTLS_ENABLED=0 LOG_LEVEL=${LOG_LEVEL:-WARNING} \
	AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test \
	"$home/venv/bin/python" -m ministack.app &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true' EXIT
trap 'exit 0' INT TERM

healthy() {
	"$python" -c 'import sys, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(sys.argv[1] + "/_ministack/health", timeout=2)' "$endpoint" 2>/dev/null
}
for _ in $(seq 100); do
	healthy && break
	kill -0 "$server" 2>/dev/null || fail "MiniStack ended before it responded"
	sleep 0.2
done
healthy || fail "MiniStack does not respond at $endpoint"

print_env
echo "start.sh: MiniStack is ready at $endpoint; Ctrl-C ends it" >&2
wait "$server"
