package functions_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// AWS-09: given the guide's answers, sam deploy --guided asks only the guide's questions, each as often as the guide says. It then tries
// to reach AWS, which the test does not let it.
func TestGuidedDeployment(t *testing.T) {
	t.Parallel()
	d, template := readDeployment(t)
	times := map[string]int{"Parameter": len(d.Parameters)}
	for _, r := range d.Resources {
		if r.Properties.FunctionURLConfig != nil {
			times["Function Url has no authentication. Is this okay?"]++
		}
	}
	guide := string(expect.Value(os.ReadFile("../docs/how-to/deploy-to-aws.md"))(t))
	_, section, _ := strings.Cut(guide, "### With SAM's guided mode\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var answers, want []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)`[^|]* \\| (Enter|your region|`.`)").FindAllStringSubmatch(section, -1) {
		question := strings.TrimSpace(strings.ReplaceAll(row[1], "NAME", ""))
		if question == "Deploy this changeset?" {
			continue // comes when the changeset exists
		}
		answer := map[string]string{"Enter": "", "your region": "eu-central-1", "`y`": "y", "`n`": "n"}[row[2]]
		for range max(1, times[question]) {
			want, answers = append(want, question), append(answers, answer)
		}
	}
	dir := t.TempDir()
	config := string(expect.Value(os.ReadFile("../samconfig.toml"))(t))
	write(t, filepath.Join(dir, "template.yaml"), template)
	write(t, filepath.Join(dir, "samconfig.toml"), config)
	sam := strings.TrimSpace(string(expect.Value(exec.CommandContext(t.Context(), "make", "-s", "-C", "..", "sam-path").Output())(t)))
	cmd := exec.CommandContext(t.Context(), sam, "deploy", "--guided", "--stack-name", "mcp-events")
	cmd.Dir, cmd.WaitDelay, cmd.Stdin = dir, 5*time.Second, strings.NewReader(strings.Join(answers, "\n")+"\n")
	cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret", "AWS_ENDPOINT_URL=http://127.0.0.1:1",
		"AWS_CONFIG_FILE="+os.DevNull, "AWS_MAX_ATTEMPTS=1", "SAM_CLI_TELEMETRY=0")
	out, _ := cmd.CombinedOutput() // fails at the end
	var asked []string
	for _, m := range regexp.MustCompile(`\t([^\t\n]+) \[[^\]\t\n]*\]: `).FindAllStringSubmatch(string(out), -1) {
		question := m[1]
		if name, ok := strings.CutPrefix(question, "Parameter "); ok {
			_, ok = d.Parameters[name]
			expect.True(t, "the parameter "+name+" exists", ok)
			question = "Parameter"
		} else if i := strings.Index(question, "Function Url"); i >= 0 {
			question = question[i:]
		}
		asked = append(asked, question)
	}
	expect.List(t, "the questions", asked, want)
	expect.Contains(t, "the end", string(out), "Could not connect to the endpoint URL")
	expect.Equal(t, "samconfig.toml afterwards", string(expect.Value(os.ReadFile(filepath.Join(dir, "samconfig.toml")))(t)), config)
}
