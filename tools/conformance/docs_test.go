package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestCommentsCount(t *testing.T) {
	root := t.TempDir()
	src := "package p\n\n// TestIt shows AAA-01.\nfunc TestIt(t *testing.T) {}\n\n// Of nobody: AAA-02.\nfunc helper() {}\n" +
		"\n// FuzzIt shows AAA-03.\nfunc FuzzIt(f *testing.F) {}\n"
	expect.OK(t, os.MkdirAll(filepath.Join(root, "shared/p"), 0o700))
	expect.OK(t, os.WriteFile(filepath.Join(root, "shared/p/p_test.go"), []byte(src), 0o600))
	tests := []test{{pkg: "shared/p", name: "TestIt", state: failed}, {pkg: "shared/q", name: "TestIt"}, {pkg: "shared/p", name: "FuzzIt"}}
	expect.OK(t, document(root, tests))
	groups := []group{{requirements: []requirement{{number: "AAA-01"}, {number: "AAA-02"}, {number: "AAA-03"}}}}
	rows := collect(groups, tests)
	if len(rows["AAA-01"]) != 1 || rows["AAA-01"][0].state != failed || len(rows["AAA-02"]) != 0 || len(rows["AAA-03"]) != 1 {
		t.Errorf("%+v", rows)
	}
}
