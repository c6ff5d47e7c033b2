#!/usr/bin/env bash
# Make this checkout ready to run: a virtual environment in .venv, and on Linux a Vulkan driver and clang.
# Run by `make setup`; safe to run again.  PYTHON names the interpreter to use (3.11 or newer).
# `setup.sh browser` installs the browser of the tests, on Debian and its derivatives; without it, their pages are skipped.
set -euo pipefail

say() { printf '==> %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

have_apt() { command -v apt-get >/dev/null 2>&1; }
have_root() { [ "$(id -u)" -eq 0 ] || sudo -n true >/dev/null 2>&1; }
as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi; }

apt() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >/dev/null
}

# apt_install ARGUMENT...: fetch the package lists only if the present ones do not suffice.
apt_install() {
    say "apt-get install $*"
    apt install -y --no-install-recommends "$@" 2>/dev/null ||
        { apt update && apt install -y --no-install-recommends "$@"; }
}

# --- Python -------------------------------------------------------------------------------------------------

recent_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
        if recent_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

make_venv() {
    local python version
    if ! python=$(find_python) && [ -z "${PYTHON:-}" ] && have_apt && have_root; then
        # Ubuntu 22.04's python3 is 3.10, with 3.11 beside it.
        apt_install python3 python3-venv || true
        find_python >/dev/null || apt_install python3.11 python3.11-venv || true
    fi
    python=$(find_python) ||
        fail "no Python 3.11 or newer${PYTHON:+ at PYTHON=$PYTHON}: install one (python3.11 and python3.11-venv" \
            "by apt-get, python@3.12 by brew) or name it: make setup PYTHON=/path/to/python3"
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        if ! { have_apt && have_root; }; then
            fail "$python lacks the venv module: sudo apt-get install python$version-venv"
        fi
        apt_install "python$version-venv"
    fi
    say "virtual environment in .venv ($("$python" --version), $python)"
    "$python" -m venv --clear .venv
}

# --- Vulkan ---------------------------------------------------------------------------------------------------

vulkan_works() {
    .venv/bin/python -c 'import slangpy as spy; spy.Device(type=spy.DeviceType.vulkan)' >/dev/null 2>&1
}

# names_suite SUITE FILE: true if an apt sources file uses this suite.
names_suite() { grep -Eq "^[^#]*[[:space:]]$1([[:space:]]|\$)" "$2" 2>/dev/null; }

# with_backports CODENAME FILE: print an apt sources file with the backports suite beside the Debian archive's own.
with_backports() {
    awk -v suite="$1" '
        done || /^[ \t]*#/ { print; next }
        /^Suites:/ {  # deb822: one more word
            for (i = 2; i <= NF; i++) if ($i == suite) { $0 = $0 " " suite "-backports"; done = 1; break }
        }
        { print }
        /^deb[ \t]/ {  # one-line style: one more line
            i = 2
            if ($2 ~ /^\[/) { while (i < NF && $i !~ /\]$/) i++; i++ }
            if ($(i + 1) == suite && / main/) {
                sub("[ \t]" suite "[ \t]", " " suite "-backports ")
                print
                done = 1
            }
        }
    ' "$2"
}

# enable_backports CODENAME [APT_FOLDER]: edit the present sources, which keeps the chosen mirrors.
enable_backports() {
    local codename=$1 folder=${2:-/etc/apt} file edited
    for file in "$folder/sources.list.d/debian.sources" "$folder/sources.list"; do
        if names_suite "$codename-backports" "$file"; then return; fi
    done
    for file in "$folder/sources.list.d/debian.sources" "$folder/sources.list"; do
        names_suite "$codename" "$file" || continue
        edited=$(mktemp)
        with_backports "$codename" "$file" >"$edited"
        if names_suite "$codename-backports" "$edited"; then
            say "adding the suite $codename-backports to $file"
            as_root install -m 644 "$edited" "$file"
            rm -f "$edited"
            apt update
            return
        fi
        rm -f "$edited"
    done
    fail "$codename's own Vulkan driver is too old and the Debian archive is not in $folder/sources.list.d/debian.sources" \
        "or $folder/sources.list: add the suite $codename-backports to your sources, then make setup again"
}

install_vulkan() {
    local codename='' sources='' command
    local packages="libvulkan1 mesa-vulkan-drivers libatomic1" # SlangPy's library needs libatomic1
    have_apt || fail "no usable Vulkan driver: install Mesa's software one, lavapipe (mesa-vulkan-drivers or" \
        "vulkan-swrast) and the Vulkan loader, then make setup again"
    # Debian 12's Mesa 22.3 lacks an extension that SlangPy needs.
    if grep -q '^ID=debian$' /etc/os-release; then
        codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
        [ "$codename" = bookworm ] || codename=''
    fi
    if [ -n "$codename" ]; then sources=", with the suite $codename-backports in your apt sources"; fi
    command="apt-get install ${codename:+-t $codename-backports }$packages"
    have_root || fail "no usable Vulkan driver, and no root to install one. As root$sources, run" \
        "'apt-get update' and '$command', then make setup again"
    if [ -n "$codename" ]; then enable_backports "$codename"; fi
    # shellcheck disable=SC2086  # a list of packages
    apt_install ${codename:+-t "$codename-backports"} $packages
    vulkan_works || fail "SlangPy finds no usable Vulkan driver even after $command; its own words:" \
        "$(.venv/bin/python -c 'import slangpy as spy; spy.Device(type=spy.DeviceType.vulkan)' 2>&1 | tail -n 1)"
}

# --- Metal ----------------------------------------------------------------------------------------------------

# The tests run the kernels' Metal source on the CPU through clang 14 or newer.
have_clang() {
    local candidate
    for candidate in clang clang-{14..24}; do
        if "$candidate" --version 2>/dev/null | grep -Eq 'version (1[4-9]|[2-9][0-9])\.'; then return; fi
    done
    return 1
}

install_clang() {
    local package=clang
    if grep -q '^VERSION_CODENAME=bookworm$' /etc/os-release; then package=clang-16; fi
    if have_apt && have_root; then
        apt_install "$package"
    else
        say "no clang 14 or newer: the tests that run Metal source on the CPU need one (apt-get install $package)"
    fi
}

install_browser() {
    if command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1; then return; fi
    # Ubuntu's package of this name only installs a snap.
    if grep -q '^ID=debian$' /etc/os-release 2>/dev/null && have_apt && have_root; then
        apt_install chromium
    else
        say "no chromium: the tests that open pages in a browser are skipped"
    fi
}

# --------------------------------------------------------------------------------------------------------------

main() {
    cd "$(dirname "${BASH_SOURCE[0]}")"
    if ! { recent_enough .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; }; then
        make_venv
    fi
    say "Python packages (the first time takes minutes)"
    # Only wheels: SlangPy has no other packages, and its newest ones are for the newest macOS only.
    .venv/bin/python -m pip install -qq --disable-pip-version-check \
        --only-binary slangpy --constraint constraints.txt --editable '.[dev,webgpu]'
    case $(uname -s) in
        Linux)
            vulkan_works || install_vulkan
            have_clang || install_clang
            ;;
        Darwin)
            xcrun -sdk macosx metal --version >/dev/null 2>&1 ||
                say "kernels will run through torch (--device mps); --device metal needs Apple's compiler: Xcode 16 or newer," \
                    "with Xcode 26 also xcodebuild -downloadComponent MetalToolchain"
            ;;
    esac
    say "ready"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    if [ "${1:-}" = browser ]; then install_browser; else main; fi
fi
