package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

const twoGroups = `# First things

ABC-01	One.
ABC-02	Two | with a bar.
# Second things
XYZ-01	Three.
XYZ-02	Four.	half of it
`

// ran returns the log of a test of package a that began and ended.
func ran(test, end string) string {
	const line = `{"Action":%q,"Package":"github.com/mcp-events/mcpevents/a","Test":%q}` + "\n"
	return fmt.Sprintf(line+line, "run", test, end, test)
}

func TestTheTable(t *testing.T) {
	tests := []struct {
		name string
		log  string
		want []string
		not  []string
	}{
		{
			name: "a_number_without_a_test_is_open",
			want: []string{"| ABC-01 | One. |  | open |", `| ABC-02 | Two \| with a bar. |`, "## Second things", "4 requirements: 0 passed, 0 in part, 0 failed, 4 open"},
		},
		{
			name: "a_number_in_a_subtest_counts_and_deeper_subtests_fold_into_it",
			log: `{"Action":"run","Package":"github.com/mcp-events/mcpevents/shared/a","Test":"TestX"}
{"Action":"run","Package":"github.com/mcp-events/mcpevents/shared/a","Test":"TestX/ABC-01_is_so"}
{"Action":"run","Package":"github.com/mcp-events/mcpevents/shared/a","Test":"TestX/ABC-01_is_so/case"}
{"Action":"pass","Package":"github.com/mcp-events/mcpevents/shared/a","Test":"TestX/ABC-01_is_so/case"}
{"Action":"pass","Package":"github.com/mcp-events/mcpevents/shared/a","Test":"TestX/ABC-01_is_so"}
{"Action":"pass","Package":"github.com/mcp-events/mcpevents/shared/a","Test":"TestX"}
`,
			want: []string{"| ABC-01 | One. | shared/a `TestX/ABC-01_is_so` | passed |", "1 passed"},
			not:  []string{"case"},
		},
		{
			name: "a_number_in_the_name_of_a_function",
			log:  ran("TestABC02AndXYZ_01", "pass"),
			want: []string{"a `TestABC02AndXYZ_01` | passed |", "2 passed"},
		},
		{
			name: "of_a_test_that_ran_twice_the_last_run_counts",
			log: `{"Action":"run","Package":"github.com/mcp-events/mcpevents/a","Test":"TestX"}
{"Action":"run","Package":"github.com/mcp-events/mcpevents/a","Test":"TestX/ABC-01_is_so"}
{"Action":"output","Package":"github.com/mcp-events/mcpevents/a","Test":"TestX/ABC-01_is_so","Output":"not ok 1 - ABC-02 late\n"}
{"Action":"fail","Package":"github.com/mcp-events/mcpevents/a","Test":"TestX/ABC-01_is_so"}
{"Action":"fail","Package":"github.com/mcp-events/mcpevents/a","Test":"TestX"}
{"Action":"run","Package":"github.com/mcp-events/mcpevents/a","Test":"TestX"}
{"Action":"run","Package":"github.com/mcp-events/mcpevents/a","Test":"TestX/ABC-01_is_so"}
{"Action":"output","Package":"github.com/mcp-events/mcpevents/a","Test":"TestX/ABC-01_is_so","Output":"ok 1 - ABC-02 late\n"}
{"Action":"pass","Package":"github.com/mcp-events/mcpevents/a","Test":"TestX/ABC-01_is_so"}
{"Action":"pass","Package":"github.com/mcp-events/mcpevents/a","Test":"TestX"}
`,
			want: []string{"2 passed, 0 in part, 0 failed"},
		},
		{
			name: "several_numbers_in_one_segment",
			log:  ran("TestX/ABC-01,ABC-02_both", "pass"),
			want: []string{"2 passed"},
		},
		{
			name: "what_is_missing_is_never_passed",
			log:  ran("TestX/XYZ-02_the_other_half", "pass"),
			want: []string{"| in part; missing: half of it |", "0 passed, 1 in part, 0 failed, 3 open"},
			not:  []string{"| passed |"},
		},
		{
			name: "what_is_missing_is_shown_beside_a_failure",
			log:  ran("TestX/XYZ-02_the_other_half", "fail"),
			want: []string{"| **failed**; missing: half of it |", "0 passed, 0 in part, 1 failed"},
		},
		{
			name: "a_row_whose_test_was_renamed_away_is_open_whatever_is_missing",
			log:  ran("TestX/the_other_half", "pass"),
			want: []string{"| XYZ-02 | Four. |  | open; missing: half of it |", "0 passed, 0 in part, 0 failed, 4 open"},
		},
		{
			name: "one_failure_fails_the_row",
			log:  ran("TestX/ABC-01_good", "pass") + ran("TestX/ABC-01_bad", "fail"),
			want: []string{"`TestX/ABC-01_bad` (failed)", "| **failed** |"},
		},
		{
			name: "a_test_that_never_ended_failed",
			log:  `{"Action":"run","Package":"github.com/mcp-events/mcpevents/a","Test":"TestX/ABC-01_hangs"}` + "\n",
			want: []string{"(failed)"},
		},
		{
			name: "a_skipped_test_shows_nothing",
			log:  ran("TestX/ABC-01_later", "skip"),
			want: []string{"(skipped)", "| **failed** |"},
		},
		{
			name: "tests_of_other_languages_are_found_in_the_output",
			log: `{"Action":"run","Package":"github.com/mcp-events/mcpevents/test","Test":"TestJS"}
{"Action":"output","Package":"github.com/mcp-events/mcpevents/test","Test":"TestJS","Output":"    js_test.go:9: ok 1 - ABC-01 a/b verified\n"}
{"Action":"output","Package":"github.com/mcp-events/mcpevents/test","Test":"TestJS","Output":"\u001b[32m✔ ABC-02 verified (12.5ms)\u001b[39m\n"}
{"Action":"output","Package":"github.com/mcp-events/mcpevents/test","Test":"TestJS","Output":"test_x.py::test_XYZ_01_verified FAILED  [ 50%]\n"}
{"Action":"pass","Package":"github.com/mcp-events/mcpevents/test","Test":"TestJS"}
`,
			want: []string{
				"test `TestJS: ABC-01 a/b verified` | passed |", "test `TestJS: ABC-02 verified` | passed |",
				"test `TestJS: test_XYZ_01_verified` (failed)",
			},
		},
		{
			name: "other_words_are_no_numbers",
			log:  ran("TestXABC-01/ABC-011", "pass"),
			want: []string{"4 open"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			file := func(name, content string) string {
				path := filepath.Join(dir, name)
				expect.OK(t, os.WriteFile(path, []byte(content), 0o600))
				return path
			}
			out := filepath.Join(dir, "out.md")
			expect.OK(t, run(file("r.tsv", twoGroups), file("log.json", tt.log), out, io.Discard))
			got := expect.Value(os.ReadFile(out))(t)
			for _, w := range tt.want {
				expect.Contains(t, "the table", string(got), w)
			}
			for _, w := range tt.not {
				expect.Lacks(t, "the page", string(got), w)
			}
		})
	}
}

func TestRequirementsAreReadStrictly(t *testing.T) {
	for name, src := range map[string]string{
		"twice":          "# A\nABC-01\tx\nABC-01\ty\n",
		"no_tab":         "# A\nABC-01 x\n",
		"no_sentence":    "# A\nABC-01\t\n",
		"no_heading":     "ABC-01\tx\n",
		"another_number": "# A\nABCD-1\tx\n",
	} {
		t.Run(name, func(t *testing.T) {
			expect.Error(t, "the requirements", expect.ErrOf(readRequirements(strings.NewReader(src))))
		})
	}
}

// TestTheProjectsRequirements holds the real file to its rules: numbers without
// a gap in every family.
func TestTheProjectsRequirements(t *testing.T) {
	f := expect.Value(os.Open("../../docs/requirements.tsv"))(t)
	defer f.Close()
	groups := expect.Value(readRequirements(f))(t)
	last := map[string]int{}
	for _, g := range groups {
		for _, r := range g.requirements {
			family := r.number[:3]
			n := int(r.number[4]-'0')*10 + int(r.number[5]-'0')
			expect.Equal(t, "the number "+r.number, n, last[family]+1)
			last[family] = n
		}
	}
	want := map[string]int{"EVS": 15, "SUB": 12, "SES": 6, "SSE": 6, "AUT": 8, "WHK": 26, "SRF": 7, "GWN": 27, "CNV": 8, "EVX": 26, "OPS": 20, "AWS": 26, "SRC": 8, "RCH": 10}
	for family, n := range want {
		expect.Equal(t, fmt.Sprintf("%s: numbers", family), last[family], n)
	}
}

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
