#!/usr/bin/env bash
# Replace the viewer that `splat export scene.html` puts into pages by a newer one: npm's package @playcanvas/supersplat-viewer.
# Its version is the argument, or the newest. Afterwards run tests/viewer/pages, and look at a page.
set -euo pipefail
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/../splat_py/viewer/pages/supersplat-viewer" && pwd)
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
cd "$temporary"
npm pack --silent "@playcanvas/supersplat-viewer${1:+@$1}"
tar -xzf ./*.tgz
grep -v '^//# sourceMappingURL=' package/public/index.js | xz -9e >"$folder/index.js.xz"
cp package/public/index.css package/LICENSE "$folder/"
sed -n 's/^  "version": "\(.*\)",$/\1/p' package/package.json >"$folder/VERSION"
