package standalone

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/durable"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/progress"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// A backup is a tar file, compressed with gzip. It contains the database and the keys that open the secrets in the database. The checksum
// of gzip reveals a damaged backup.
const (
	databaseName = "mcpevents.db"
	keysName     = "keys.json"
)

// Backup writes the database and the keys of a data directory to a new file that only its owner can read. A server may use the directory
// meanwhile. The backup then contains everything that the server had accepted before the backup began.
//
// If other commands change the keys during each attempt, Backup returns an error of kind [fault.Conflict]. If the parameter shown is not
// nil, Backup writes progress bars to it.
func Backup(ctx context.Context, data, file string, shown io.Writer) error {
	return backup(ctx, data, file, shown, engine.Copy)
}

type copier func(ctx context.Context, path, to string, begun func(size int64)) error

func backup(ctx context.Context, data, file string, shown io.Writer, copyFile copier) (err error) {
	defer func() { err = explain(ctx, err, "back up "+data) }()
	path := filepath.Join(data, databaseName)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Invalid, "%s is not the data directory of a server: there is no %s", data, path)
	} else if err != nil {
		return err
	}
	if _, err := os.Lstat(file); err == nil {
		return fault.New(fault.Invalid, "%s exists already", file)
	}
	dir := filepath.Dir(file)
	copied, err := os.CreateTemp(dir, ".mcpevents-*.db") // mode 0600
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Invalid, "the directory %s does not exist (create it first)", dir)
	}
	if err != nil {
		return err
	}
	defer func() {
		// If the disk is full, SQLite leaves the copy's journal file behind. Remove this file, too.
		_, _, _ = copied.Close(), os.Remove(copied.Name()), os.Remove(copied.Name()+"-journal")
	}()
	keys, err := copyWithKeys(data, func() error {
		if err := copied.Truncate(0); err != nil {
			return err
		}
		return copyDatabase(ctx, path, copied, shown, copyFile)
	})
	if err != nil {
		return err
	}
	info, err := copied.Stat()
	if err != nil {
		return err
	}
	out, err := os.CreateTemp(dir, ".mcpevents-*.tar.gz")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(out.Name()) }() // fails if the backup succeeded, because the file was then renamed
	zipped, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(zipped)
	err = errors.Join(addFile(ctx, archive, databaseName, copied, info.Size(), shown),
		addFile(ctx, archive, keysName, bytes.NewReader(keys), int64(len(keys)), nil),
		archive.Close(), zipped.Close(), out.Sync(), out.Close())
	if err != nil {
		return err
	}
	return durable.Rename(out.Name(), file)
}

// maxCopies is the maximum number of times that a backup copies the database. The backup copies it again if the file with the encryption
// keys has changed during the copy.
const maxCopies = 3

// copyWithKeys calls the function copyDatabase, and returns the content of the keys file. If the keys change meanwhile, it calls
// copyDatabase again. Otherwise [DropKeys] could remove a key from the file that secrets in the copy still need.
func copyWithKeys(data string, copyDatabase func() error) (keys []byte, err error) {
	before, _, err := readKeysFile(data)
	if err != nil {
		return nil, err
	}
	for range maxCopies {
		if err := copyDatabase(); err != nil {
			return nil, err
		}
		after, _, err := readKeysFile(data)
		if err != nil {
			return nil, err
		}
		if bytes.Equal(before, after) {
			return after, nil
		}
		before = after
	}
	return nil, fault.New(fault.Conflict, "%s changed while the backup copied the database: wait until no mcpevents keys command runs, and try again",
		secretsPath(data))
}

// explain adds the name of a failed operation, which is the parameter what, to its error. If ctx has ended, the error says that the
// operation was interrupted.
func explain(ctx context.Context, err error, what string) error {
	if err != nil && ctx.Err() != nil {
		return fault.Wrap(fault.Unavailable, ctx.Err(), "%s: interrupted, no file was written", what)
	}
	kind := engine.Kind(err)
	if kind == fault.Internal { // an error of the file system, such as a missing directory, and not a defect of this program
		kind = fault.Invalid
	}
	return fault.Wrap(kind, err, "%s", what)
}

func copyDatabase(ctx context.Context, path string, to *os.File, shown io.Writer, copyFile copier) error {
	stop := func() {}
	defer func() { stop() }()
	return copyFile(ctx, path, to.Name(), func(size int64) {
		stop = progress.Count(shown, "KiB copied", size>>10, func() int64 {
			info, err := to.Stat()
			if err != nil {
				return 0
			}
			return info.Size() >> 10
		})
	})
}

func addFile(ctx context.Context, to *tar.Writer, name string, content io.Reader, size int64, shown io.Writer) error {
	if err := to.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, ModTime: time.Now()}); err != nil {
		return err
	}
	r, stop := progress.Bytes(shown, "written", size, content)
	defer stop()
	_, err := io.Copy(to, untilDone(ctx, r))
	return err
}

// Restore creates a data directory from a backup. It refuses a directory that already contains the data of a server. If the backup is
// damaged, Restore removes the files that it has written. If the parameter shown is not nil, Restore writes progress bars to it.
func Restore(ctx context.Context, file, data string, shown io.Writer) (err error) {
	defer func() { err = explain(ctx, err, "restore "+file) }()
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	for _, name := range []string{databaseName, databaseName + "-wal", keysName} {
		if _, err := os.Lstat(filepath.Join(data, name)); err == nil {
			return fault.New(fault.Conflict, "%s is there already; name an empty directory, or move it away", filepath.Join(data, name))
		}
	}
	r, stop := progress.Bytes(shown, "read", info.Size(), in)
	defer stop()
	zipped, err := gzip.NewReader(untilDone(ctx, r))
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "it is not a backup")
	}
	found := map[string]string{} // the path of the temporary file for each member of the archive
	defer func() {
		for _, name := range found {
			_ = os.Remove(name)
		}
	}()
	for archive := tar.NewReader(zipped); ; {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "it is damaged")
		}
		if h.Name != databaseName && h.Name != keysName || found[h.Name] != "" {
			return fault.New(fault.Invalid, "it is not a backup: it has the member %.100q", h.Name)
		}
		out, err := os.CreateTemp(data, ".restore-*") // mode 0600
		if err != nil {
			return err
		}
		found[h.Name] = out.Name()
		_, err = io.Copy(out, reader(func(b []byte) (int, error) {
			n, err := archive.Read(b)
			if err != io.EOF {
				err = fault.Wrap(fault.Invalid, err, "it is damaged")
			}
			return n, err
		}))
		if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, zipped); err != nil { // read the rest, so that gzip verifies the checksum
		return fault.Wrap(fault.Invalid, err, "it is damaged")
	}
	if len(found) != 2 {
		return fault.New(fault.Invalid, "it is not a backup: it lacks %s or %s", databaseName, keysName)
	}
	return errors.Join(durable.Rename(found[databaseName], filepath.Join(data, databaseName)), durable.Rename(found[keysName], secretsPath(data)))
}

// untilDone returns a reader that reads from r, and that returns an error as soon as ctx has ended.
func untilDone(ctx context.Context, r io.Reader) io.Reader {
	return reader(func(b []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return r.Read(b)
	})
}

type reader func(b []byte) (int, error)

func (f reader) Read(b []byte) (int, error) { return f(b) }
