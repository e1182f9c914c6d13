//go:build unix

package durable

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives the new file the owner and the group of the old file at path, which the new file will replace. It does so only if the
// process runs as root, because other users cannot give files away. If there is no file at path, keepOwner does nothing.
func keepOwner(file *os.File, path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	old, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	owner, ok := old.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid == 0 && owner.Gid == 0 {
		return nil
	}
	return file.Chown(int(owner.Uid), int(owner.Gid))
}
