# Shell functions the scripts share; sourced, not run. Every script has set -euo pipefail before.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case $target in /*) ;; *) target=$root/$target ;; esac
venv=${POINTSMAN_VENV:-$target/venv}
export POINTSMAN_VENV=$venv
rust_at_least=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml")

say() { printf '%s\n' "$*"; }

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# Whether version $1 is at least version $2.
version_at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# The steps of a longer script, for the summary at its end.
steps=()
step_now=
step_started=$SECONDS

# Runs the rest of the line as the step named $1; the script ends where a step fails.
step() {
    step_now=$1
    step_started=$SECONDS
    shift
    printf '\n== %s\n' "$step_now"
    "$@"
    steps+=("$(printf 'passed  %4d s  %s' $((SECONDS - step_started)) "$step_now")")
    step_now=
}

# Prints every step with its time, and says whether all passed. For `trap summary EXIT`.
summary() {
    local code=$? line
    trap - EXIT
    printf '\n== summary\n'
    for line in "${steps[@]+"${steps[@]}"}"; do say "$line"; done
    if [ -n "$step_now" ]; then
        printf 'FAILED  %4d s  %s\n' $((SECONDS - step_started)) "$step_now"
        [ "$code" -ne 0 ] || code=1
    fi
    if [ "$code" -eq 0 ]; then
        printf 'all %d steps passed in %d s\n' "${#steps[@]}" "$SECONDS"
    else
        printf 'not passed (exit %d, after %d s)\n' "$code" "$SECONDS"
    fi
    exit "$code"
}
