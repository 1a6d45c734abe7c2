#!/usr/bin/env bash
# Regenerates proto/gen from the .proto files, with the oldest grpcio-tools of all images (its code loads on
# protobuf 5, 6 and 7). `proto/generate.sh --check` fails when the checked-in code is out of date.
set -euo pipefail
cd "$(dirname "$0")"
tools="${FURLONG_PROTO_TOOLS:-../.cache/proto-tools}"
if [ ! -x "$tools/bin/python" ]; then
  python3 -m venv "$tools"
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check -r ../requirements/proto.txt
fi
out=gen
if [ "${1:-}" = "--check" ]; then
  out="$(mktemp -d)"
  trap 'rm -rf "$out"' EXIT
fi
rm -rf "$out/furlong"
mkdir -p "$out"
mapfile -t sources < <(find furlong -name '*.proto' | LC_ALL=C sort)
PATH="$(cd "$tools/bin" && pwd):$PATH" "$tools/bin/python" -W ignore -m grpc_tools.protoc -I . \
  --python_out="$out" --grpc_python_out="$out" --mypy_out=quiet:"$out" --mypy_grpc_out=quiet:"$out" "${sources[@]}"
if [ "${1:-}" = "--check" ]; then
  if ! diff -r -q -x __pycache__ "$out/furlong" gen/furlong; then
    echo "proto/gen is out of date: run proto/generate.sh and commit the result" >&2
    exit 1
  fi
  echo "proto/gen is up to date"
fi
