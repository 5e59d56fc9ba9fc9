#!/bin/sh
# What a container does at its start: it serves the engine at INFLIGHT_ENGINE, with the options given, until it gets a
# SIGTERM; or it runs another command, if one is given. What is missing is said in one sentence before Triton starts.
set -eu

case "${1-}" in
'' | -*) ;;
*) exec "$@" ;;
esac
for option; do
    case $option in
    -h | --help) exec inflight serve --help ;;
    esac
done

engine=${INFLIGHT_ENGINE:-/engine}
run_dir=${INFLIGHT_RUN_DIR:-/run/inflight}
# Docker gives 64 MiB, which runs full under load; the processes of a tensor-parallel engine need much more.
least_shared_memory_mib=256

fail() {
    echo "Error: $1 [$2]" >&2
    exit 1
}

check_engine() {
    [ -d "$engine" ] ||
        fail "There is no engine directory at $engine; mount one there, as with --volume /my-engine:$engine:ro, or name its place with INFLIGHT_ENGINE." engine_not_found
    # lost+found is root's own, at the root of a disk; of a link that leads nowhere the engine's files will tell.
    unreadable=$(find "$engine" -name lost+found -prune -o ! -type l ! -readable -print -quit 2>/dev/null || true)
    [ -z "$unreadable" ] ||
        fail "The container's user $(id -u) may not read $unreadable; say chmod -R a+rX on the engine directory, or run the container as its owner (--user)." engine_not_found
    [ -n "$(ls -A "$engine")" ] ||
        fail "The engine directory $engine is empty; mount one that \`inflight build\` made, as with --volume /my-engine:$engine:ro." engine_not_found
    [ -e "$engine/engine.json" ] || [ ! -e "$engine/config.json" ] ||
        fail "$engine has no engine.json, so it is a checkpoint; compile it with \`inflight build\` and mount the engine." engine_not_found
    if grep -qs '"target": *"\(tensorrt-llm\|llmapi\)"' "$engine/engine.json" && [ ! -e /dev/nvidiactl ]; then
        fail "The engine in $engine is for TensorRT-LLM and this container has no GPU; start it with --gpus all on a machine with NVIDIA's container toolkit, and see what \`inflight doctor\` finds in it." server_start_failed
    fi
}

check_shared_memory() {
    size=$(df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')
    [ "${size:-0}" -ge "$least_shared_memory_mib" ] ||
        fail "/dev/shm has ${size:-0} MiB free and serving takes $least_shared_memory_mib at the least; give the container more, as with --shm-size 1g." server_start_failed
}

# Triton's python backend makes a directory in /tmp, whatever TMPDIR says. From the run directory it runs a program.
check_places() {
    [ -w /tmp ] || fail "The container's user $(id -u) can't write to /tmp; mount something there, as with --tmpfs /tmp." server_start_failed

    probe=$(mkdir -p "$run_dir" 2>/dev/null && mktemp "$run_dir/start-XXXXXX" 2>/dev/null) ||
        fail "The container's user $(id -u) can't write to $run_dir; mount something there, as with --tmpfs $run_dir:exec,mode=1777, or name another place with INFLIGHT_RUN_DIR." server_start_failed
    echo '#!/bin/sh' >"$probe"
    chmod 700 "$probe"
    runs=yes
    "$probe" 2>/dev/null || runs=no
    rm -f "$probe"
    [ "$runs" = yes ] ||
        fail "No program may run from $run_dir, which is mounted noexec; mount it with exec, as with --tmpfs $run_dir:exec,mode=1777." server_start_failed
}

case $engine in
*://*) ;; # a place that Triton reads by itself, as s3://
*) check_engine ;;
esac
check_shared_memory
check_places

# A container does not know its own address, so what others may reach listens on all of them. With API keys that is the
# gateway, also for the metrics, and Triton's own ports stay inside. Without keys it is Triton: INFLIGHT_SERVE_BEHIND_PROXY=1 says that its
# ports are published on loopback, or behind a proxy (docs/security.md).
keys=${INFLIGHT_SERVE_KEY_FILE:-/keys/keys.json}
if [ -e "$keys" ]; then
    export INFLIGHT_SERVE_KEY_FILE="$keys"
    export INFLIGHT_SERVE_GATEWAY_HOST="${INFLIGHT_SERVE_GATEWAY_HOST:-0.0.0.0}"
    export INFLIGHT_SERVE_STATE_DIR="${INFLIGHT_SERVE_STATE_DIR:-$run_dir/gateway}"
    export INFLIGHT_SERVE_HOST="${INFLIGHT_SERVE_HOST:-127.0.0.1}"
else
    export INFLIGHT_SERVE_HOST="${INFLIGHT_SERVE_HOST:-0.0.0.0}"
    export INFLIGHT_SERVE_GATEWAY="${INFLIGHT_SERVE_GATEWAY:-0}"
fi
export INFLIGHT_SERVE_JSON="${INFLIGHT_SERVE_JSON:-1}"
exec inflight serve "$engine" "$@"
