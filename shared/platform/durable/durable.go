// Package durable writes files that a kill of the process, or of the machine, leaves whole.
package durable

import (
	"errors"
	"os"
	"path/filepath"
)

// WriteFile replaces a file by one with the content, or leaves it as it is. The file has mode 0600, and outlives the
// machine once WriteFile has returned without an error.
func WriteFile(path string, content []byte) error {
	dir := filepath.Dir(path)
	temp, err := os.CreateTemp(dir, filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }() // there only if what follows failed
	_, err = temp.Write(content)
	err = errors.Join(err, temp.Sync(), temp.Close())
	if err == nil {
		err = Rename(temp.Name(), path)
	}
	return err
}

// Rename renames a file whose content is synced. The new name outlives the machine once Rename has returned without an
// error.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

// syncDir makes the names in a directory outlive the machine. Tests replace it.
var syncDir = func(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
