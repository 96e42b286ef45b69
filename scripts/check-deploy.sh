#!/bin/sh
# Checks the manifests of deploy/kubernetes against the schemas of the Kubernetes API, without a
# cluster and without a network once it has run: unknown fields are errors, too. The schemas come
# with the Python package kubernetes-validate, into build/kubernetes/. With --fetch that is all.
set -eu
cd "$(dirname "$0")/.."
# Versions of the API: the oldest and the newest that the package has.
VERSIONS="1.25.0 1.37.0"

if [ ! -x build/kubernetes/bin/kubernetes-validate ]; then
	echo "check-deploy: installing kubernetes-validate into build/kubernetes"
	rm -rf build/kubernetes
	python3 -m venv build/kubernetes ||
		{ echo "check-deploy: install the package python3-venv" >&2; exit 3; }
	build/kubernetes/bin/pip install -q --disable-pip-version-check \
		kubernetes-validate==1.37.0 setuptools
fi
[ "${1-}" != --fetch ] || exit 0
for version in $VERSIONS; do
	build/kubernetes/bin/kubernetes-validate --strict --kubernetes-version "$version" \
		deploy/kubernetes/*.yaml
done
echo "check-deploy: deploy/kubernetes is good for Kubernetes $VERSIONS"
