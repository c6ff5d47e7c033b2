#!/usr/bin/env bash
# Install the browser in which tests open pages, on Debian and the like. Without one, those tests are skipped.
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

if ! command -v chromium >/dev/null 2>&1 && ! command -v google-chrome >/dev/null 2>&1; then
    # Ubuntu's package of that name only installs a snap.
    if grep -q '^ID=debian$' /etc/os-release 2>/dev/null && have_apt && have_root; then
        apt_install chromium
    else
        say "no chromium: the tests that open pages in a browser are skipped"
    fi
fi
