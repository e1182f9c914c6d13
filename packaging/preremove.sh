#!/bin/sh
# Stops the service before its package is removed. Debian passes "remove" then, and RPM 0, which is how many versions remain.
[ -d /run/systemd/system ] || exit 0
case "$1" in
remove | 0) systemctl disable --now mcpevents.service || true ;;
esac
