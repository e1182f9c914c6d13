package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// passed is the stream of one test.
const passed = `{"Action":"output","Package":"m/a","Test":"TestA","Output":"--- PASS: TestA (0.00s)\n"}
{"Action":"pass","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.01s\n"}
{"Action":"pass","Package":"m/a"}
`

func TestView(t *testing.T) {
	tests := []struct {
		name   string
		stream string
		names  options
		ok     bool
		want   []string
		not    []string
	}{
		{
			name: "passing_tests_are_one_line_per_package",
			stream: `{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"    a_test.go:3: chatter\n"}
{"Action":"pass","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.01s\n"}
{"Action":"pass","Package":"m/a"}
`,
			ok:   true,
			want: []string{"ok  \tm/a\t0.01s\n", "1 tests passed, 0 failed, 0 skipped"},
			not:  []string{"chatter", "PASS", "FAIL"},
		},
		{
			name: "a_failing_test_shows_its_output",
			stream: `{"Action":"output","Package":"m/a","Test":"TestA","Output":"    a_test.go:3: got 1, want 2\n"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}
{"Action":"fail","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Output":"FAIL\n"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t0.01s\n"}
{"Action":"fail","Package":"m/a"}
`,
			want: []string{"got 1, want 2", "--- FAIL: m/a TestA", "0 tests passed, 1 failed", "FAIL\tm/a\t0.01s\nFAIL\n"},
		},
		{
			name: "a_package_that_does_not_build_fails",
			stream: `{"ImportPath":"m/a","Action":"build-output","Output":"a.go:1: undefined: x\n"}
{"ImportPath":"m/a","Action":"build-fail"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a [build failed]\n"}
{"Action":"fail","Package":"m/a"}
`,
			want: []string{"undefined: x", "FAIL\tm/a [build failed]"},
		},
		{
			name: "a_panic_shows_the_test_that_ran",
			stream: `{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"panic: boom\n"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t0.01s\n"}
{"Action":"fail","Package":"m/a"}
`,
			want: []string{"panic: boom", "--- FAIL: m/a TestA"},
		},
		{
			name:   "a_stream_that_breaks_off_fails",
			stream: `{"Action":"output","Package":"m/a","Test":"TestA","Output":"working\n"}` + "\n",
			want:   []string{"working", "--- FAIL: m/a TestA", "FAIL"},
		},
		{
			name:   "tests_that_are_left_out_are_told",
			stream: passed,
			names:  options{left: []string{"TestHeavy", "TestHeavier"}},
			ok:     true,
			want:   []string{"2 tests are left to make test-full: TestHeavy, TestHeavier\n"},
		},
		{
			name:   "a_test_that_must_run_and_is_not_there_fails",
			stream: passed,
			names:  options{with: []string{"TestA", "TestGone"}},
			want:   []string{"--- MISSING: TestGone", "FAIL\n"},
			not:    []string{"MISSING: TestA"},
		},
		{name: "an_empty_stream_fails", want: []string{"FAIL"}},
		{
			name:   "what_go_says_itself_is_passed_on",
			stream: "go: updates to go.mod needed\n",
			want:   []string{"go: updates to go.mod needed"},
		},
		{
			name: "a_skipped_test_is_told",
			stream: `{"Action":"output","Package":"m/a","Test":"TestA","Output":"    a_test.go:3: no network\n"}
{"Action":"skip","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.01s\n"}
{"Action":"pass","Package":"m/a"}
`,
			ok:   true,
			want: []string{"no network", "1 skipped"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			log := filepath.Join(t.TempDir(), "deep", "test.json")
			tt.names.log = log
			expect.Equal(t, "ok", expect.Value(run(strings.NewReader(tt.stream), &out, tt.names))(t), tt.ok)
			for _, w := range tt.want {
				expect.Contains(t, "the output", out.String(), w)
			}
			for _, w := range tt.not {
				expect.Lacks(t, "the output", out.String(), w)
			}
			expect.Equal(t, "the log", string(expect.Value(os.ReadFile(log))(t)), tt.stream)
		})
	}
}
