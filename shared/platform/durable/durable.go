// Package durable writes files atomically: if the process is killed or the machine loses power, a file has its old content or its new
// content.
package durable

import (
	"errors"
	"os"
	"path/filepath"
)

// WriteFile replaces the content of a file, or creates the file, with mode 0600. If root replaces another user's file, that user still
// owns it. When WriteFile returns nil, the new content is on disk.
func WriteFile(path string, content []byte) error {
	dir := filepath.Dir(path)
	temp, err := os.CreateTemp(dir, filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }() // after a success this removes nothing, because the file was renamed
	_, err = temp.Write(content)
	err = errors.Join(err, keepOwner(temp, path), temp.Sync(), temp.Close())
	if err == nil {
		err = Rename(temp.Name(), path)
	}
	return err
}

// Rename renames a file whose content is already on disk. When Rename returns nil, the new name is on disk too.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

// syncDir syncs a directory to disk, and with it the names of its files. Tests replace it.
var syncDir = func(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
