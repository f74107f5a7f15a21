#!/bin/sh
# Builds the image with buildah, without Docker and without a registry: `make image`. Takes root or a user namespace.
# The base is made of Debian's packages, Python's packages are downloaded by their hashes, and the build itself reaches
# no network.
#
# build-image.sh TAG PYTHON: PYTHON has pip, and the version of Debian's Python.
set -eu
tag=$1 python=$2
cd "$(dirname "$0")/.."
built=$(pwd)/build/image
base=localhost/mergerouter-base
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot

mkdir -p "$built/wheels"
if [ -z "$(find "$built/base.tar" -mtime -1 2>/dev/null)" ]; then  # at most a day old: Debian mends its packages
    mmdebstrap --variant=minbase --include=python3-minimal,python3-venv,ca-certificates \
        "${SUITE:-bookworm}" "$built/base.tar.part" "${MIRROR:-http://deb.debian.org/debian}"
    mv "$built/base.tar.part" "$built/base.tar"
fi
for list in requirements build-requirements; do
    "$python" -m pip download --quiet --disable-pip-version-check --dest "$built/wheels" --no-deps \
        --only-binary :all: --require-hashes -r "deploy/$list.txt"
done

container=$(buildah from scratch)
trap 'buildah rm "$container" >/dev/null 2>&1 || true' EXIT
buildah add --quiet "$container" "$built/base.tar" /
buildah commit --quiet --rm "$container" "$base"
buildah build --format docker --network none --build-arg BASE="$base" \
    --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels --volume "$built/wheels:/wheels:ro" \
    --file deploy/Dockerfile --tag "$tag" .
buildah images --digests "$tag"
