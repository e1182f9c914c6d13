package functions_test

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/test/expect"
)

// deployment contains the parts of template.yaml that the tests use.
type deployment struct {
	Parameters map[string]struct {
		Default        *string  `yaml:"Default"`
		AllowedValues  []string `yaml:"AllowedValues"`
		AllowedPattern string   `yaml:"AllowedPattern"`
		Description    string   `yaml:"Description"`
	} `yaml:"Parameters"`
	Rules map[string]struct {
		RuleCondition yaml.Node `yaml:"RuleCondition"`
		Assertions    []struct {
			Assert            yaml.Node `yaml:"Assert"`
			AssertDescription string    `yaml:"AssertDescription"`
		} `yaml:"Assertions"`
	} `yaml:"Rules"`
	Conditions map[string]yaml.Node `yaml:"Conditions"`
	Globals    struct {
		Function struct {
			Environment environmentOf `yaml:"Environment"`
		} `yaml:"Function"`
	} `yaml:"Globals"`
	Resources map[string]resource `yaml:"Resources"`
}

type environmentOf struct {
	Variables map[string]yaml.Node `yaml:"Variables"`
}

func readDeployment(t *testing.T) (d deployment, text string) {
	t.Helper()
	src := expect.Value(os.ReadFile("../template.yaml"))(t)
	expect.OK(t, yaml.Unmarshal(src, &d))
	return d, string(src)
}

// written returns the text of a value in the template.
func written(t *testing.T, n yaml.Node) string {
	t.Helper()
	b := expect.Value(yaml.Marshal(&n))(t)
	return strings.TrimSpace(string(b))
}

// finds reports whether a variable only names a resource of the function, so that it is not a setting.
func finds(variable string) bool {
	for _, prefix := range []string{"MCPEVENTS_TABLE_", "MCPEVENTS_QUEUE_", "MCPEVENTS_KEY_ID", "MCPEVENTS_STACK", "MCPEVENTS_FINGERPRINT", "MCPEVENTS_REGISTER_", "MCPEVENTS_DEREGISTER_", "MCPEVENTS_PUBLISH_URL"} {
		if strings.HasPrefix(variable, prefix) {
			return true
		}
	}
	return false
}

// given returns the settings that the template passes to functions, by variable.
func given(t *testing.T, d deployment) map[string]string {
	t.Helper()
	settings := map[string]string{}
	add := func(e environmentOf) {
		for name, value := range e.Variables {
			if !finds(name) {
				settings[name] = written(t, value)
			}
		}
	}
	add(d.Globals.Function.Environment)
	for _, r := range d.Resources {
		add(r.Properties.Environment)
	}
	return settings
}

func TestSettingsOfTheTemplate(t *testing.T) {
	d, text := readDeployment(t)
	settings := given(t, d)
	t.Run("AWS-02 keys checks the settings before the functions get them", func(t *testing.T) {
		checked := map[string]string{}
		for name, value := range d.Resources["Keys"].Properties.Settings {
			checked[name] = written(t, value)
		}
		expect.Map(t, "the settings that keys checks and those of the functions", checked, settings)
		expect.Equal(t, "the version of the resource", d.Resources["Keys"].Properties.Version, app.Version)
		const fingerprint = "MCPEVENTS_FINGERPRINT"
		if got := written(t, d.Globals.Function.Environment.Variables[fingerprint]); got != "!GetAtt Keys.Fingerprint" {
			t.Errorf("the functions do not depend on the check: %s is %s", fingerprint, got)
		}
		for id, r := range d.Resources {
			if _, own := r.Properties.Environment.Variables[fingerprint]; own != (id == "KeysFunction") {
				t.Errorf("%s overrides %s: %v", id, fingerprint, own)
			}
		}
	})
	t.Run("AWS-09 every setting can be set", func(t *testing.T) {
		expect.Differ(t, "the functions' setting "+config.EnvSettings, settings[config.EnvSettings], "")
		known := map[string]bool{config.EnvSettings: true, "MCPEVENTS_AUTH": true, "MCPEVENTS_FRONT_KEY": true, "MCPEVENTS_LOG_LEVEL": true}
		for name := range config.Names() {
			known[config.EnvName(name)] = true
			if settings[config.EnvName(name)] != "" {
				continue
			}
			value := map[string]string{"allow-no-expiry": "true", "keep-responses": "true", "server-identity": "true", "event-tools": "true", "trusted-proxies": "10.0.0.0/8", "verify-registrations": "true"}[name]
			if value == "" {
				value = strings.Trim(defaultOf(t, name), "[]")
			}
			if err := boot.Check(func(v string) string {
				return map[string]string{"MCPEVENTS_AUTH": "keys", config.EnvSettings: name + "=" + value}[v]
			}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for name := range settings {
			expect.True(t, "a function reads "+name, known[name])
		}
	})
	t.Run("AWS-09 each parameter has a default, is used, and is documented", func(t *testing.T) {
		docs := expect.Value(os.ReadFile("../docs/reference/settings.md"))(t)
		for name, p := range d.Parameters {
			if p.Default == nil {
				t.Errorf("%s has no default, so every deployment must set it", name)
			}
			expect.True(t, "the template uses "+name, regexp.MustCompile(`(!Ref `+name+`\b|\$\{`+name+`\})`).MatchString(text))
			expect.Contains(t, name+" in docs/reference/settings.md", string(docs), "`"+name+"`")
		}
	})
}

// defaultOf returns the default of a limit, or any valid value.
func defaultOf(t *testing.T, name string) string {
	t.Helper()
	for _, prefix := range []string{"verified-targets", "plain-targets", "otlp-endpoint", "public-url"} {
		if name == prefix {
			return "https://a.example/"
		}
	}
	if name == "allowed-hosts" || name == "console-client-id" || name == "jwt-scope-prefix" {
		return "a.example"
	}
	b := expect.Value(os.ReadFile("../shared/app/config/limits.go"))(t)
	found := regexp.MustCompile(`name:"` + name + `" default:"([^"]+)"`).FindSubmatch(b)
	if found == nil {
		t.Fatalf("no default of %s", name)
	}
	return string(found[1])
}

func TestPatternsOfParameters(t *testing.T) {
	d, _ := readDeployment(t)
	for name, tc := range map[string]struct{ good, bad []string }{
		"JwtIssuer":              {[]string{"", "https://login.example.com", "https://a.example/t,https://b.example", "https://a.example, https://b.example"}, []string{"login.example.com", "https://", "https://a.example,", " "}},
		"JwtAudience":            {[]string{"", "https://e.example/mcp", "https://e.example/mcp,api"}, []string{"api", "https://e.example/mcp,,x"}},
		"JwtJwksUrl":             {[]string{"", "https://login.example.com/keys"}, []string{"/keys"}},
		"JwtPrincipalClaim":      {[]string{"sub", "https://a.example/id"}, []string{"", "a b"}},
		"JwtWorkspaceClaim":      {[]string{"", "org"}, []string{"a b"}},
		"AllowedOrigins":         {[]string{"", "https://console.example.com", "http://localhost:3000,https://b.example"}, []string{"https://console.example.com/", "console.example.com", "*"}},
		"BlockedTargets":         {[]string{"", "events.example.com", "a.example,b.example"}, []string{"https://a.example", "a.example/", "a,,b"}},
		"PlainTargets":           {[]string{"", "https://chatgpt.com/", "https://a.example/b/,https://c.example/"}, []string{"https://chatgpt.com", "chatgpt.com/"}},
		"Retention":              {[]string{"24h", "90m"}, []string{"", "1d", "24", "0h"}},
		"SecretsPrefix":          {[]string{"/mcp-events/", "/a/b/"}, []string{"", "/", "mcp-events/", "/*/"}},
		"SourceEventPattern":     {[]string{"", `{"source":["aws.s3"]}`, " {\n  \"source\": [\"aws.s3\"]\n} "}, []string{"aws.s3", `["aws.s3"]`, `{"source":["aws.s3"]`}},
		"SourceEventBus":         {[]string{"default", "orders", "aws.partner/example.com/shop"}, []string{"", "arn:aws:events:eu-central-1:123456789012:event-bus/orders", "a b"}},
		"SourceTopicArn":         {[]string{"", "arn:aws:sns:eu-central-1:123456789012:orders"}, []string{"orders", "arn:aws:sns:eu-central-1:123456789012:orders.fifo"}},
		"SourceBucketArns":       {[]string{"", "arn:aws:s3:::my-uploads"}, []string{"my-uploads", "arn:aws:s3:::my-uploads/*", "arn:aws:s3:::*"}},                                                                                                  // of each in the list
		"PublisherArns":          {[]string{"", "arn:aws:iam::123456789012:role/app/publisher", "arn:aws:iam::123456789012:root"}, []string{"*", "123456789012", "arn:aws:iam::123456789012:role/*", "arn:aws:sts::123456789012:assumed-role/a/b"}}, // of each in the list
		"LogTableArn":            {[]string{"", "arn:aws:dynamodb:eu-central-1:123456789012:table/a-Log_1.x"}, []string{"a-Log", "arn:aws:dynamodb:eu-central-1:123456789012:table/a/index/b"}},
		"SealingKeyArn":          {[]string{"", "arn:aws:kms:eu-central-1:123456789012:key/0a-1b"}, []string{"0a-1b", "arn:aws:kms:eu-central-1:123456789012:alias/x"}},
		"StreamCapacityProvider": {[]string{"", "arn:aws:lambda:eu-central-1:123456789012:capacity-provider:my-Streams_1"}, []string{"my-streams", "arn:aws:lambda:eu-central-1:123456789012:function:streams"}},
		"FrontDomain":            {[]string{"", "events.example.com"}, []string{"https://events.example.com", "events.example.com/", "localhost"}},
		"FrontCertificateArn":    {[]string{"", "arn:aws:acm:us-east-1:123456789012:certificate/0a-1b"}, []string{"arn:aws:acm:eu-central-1:123456789012:certificate/0a-1b"}},
		"FrontWebAclArn":         {[]string{"", "arn:aws:wafv2:us-east-1:123456789012:global/webacl/a/0a-1b"}, []string{"arn:aws:wafv2:eu-central-1:123456789012:regional/webacl/a/0a-1b"}},
		"ExtraSettings":          {[]string{"", "quota=50", "quota=50;webhook-timeout=10s;", " quota = 50 ; target-ports=443,8443"}, []string{"quota", "quota=", "QUOTA=5", ";", "quota=5;;streams=5"}},
	} {
		t.Run("AWS-02 "+name, func(t *testing.T) {
			pattern := d.Parameters[name].AllowedPattern
			for _, value := range append(tc.good, *d.Parameters[name].Default) {
				expect.True(t, value+" is allowed", matches(pattern, value))
			}
			for _, value := range tc.bad {
				expect.True(t, value+" is refused", !matches(pattern, value))
			}
		})
	}
}

// matches reports whether a pattern allows a value.
func matches(pattern, value string) bool { return regexp.MustCompile(pattern).MatchString(value) }

// evaluate returns the value of a node of the template, as CloudFormation does. Parameters that are not given have
// their defaults.
func evaluate(d deployment, parameters map[string]string, n yaml.Node) any {
	args := make([]any, len(n.Content))
	for i, c := range n.Content {
		args[i] = evaluate(d, parameters, *c)
	}
	switch n.Tag {
	case "!Ref":
		if value, ok := parameters[n.Value]; ok {
			return value
		}
		return *d.Parameters[n.Value].Default
	case "!Condition":
		return evaluate(d, parameters, d.Conditions[n.Value])
	case "!Equals":
		return args[0] == args[1]
	case "!Not":
		return args[0] != true
	case "!And":
		return !slices.Contains(args, any(false))
	case "!Or":
		return slices.Contains(args, any(true))
	case "!If":
		if evaluate(d, parameters, d.Conditions[n.Content[0].Value]) == true {
			return args[1]
		}
		return args[2]
	}
	return n.Value
}

// broken evaluates the template's rules as CloudFormation does before it changes anything, and returns the
// descriptions of the assertions that do not hold.
func broken(t *testing.T, d deployment, parameters map[string]string) (descriptions []string) {
	t.Helper()
	for _, rule := range d.Rules {
		if rule.RuleCondition.Kind != 0 && evaluate(d, parameters, rule.RuleCondition) != true {
			continue
		}
		for _, a := range rule.Assertions {
			if evaluate(d, parameters, a.Assert) != true {
				descriptions = append(descriptions, a.AssertDescription)
			}
		}
	}
	return descriptions
}

func TestRulesOfParameters(t *testing.T) {
	d, _ := readDeployment(t)
	const certificate = "arn:aws:acm:us-east-1:123456789012:certificate/0a-1b"
	const issuer, audience = "https://login.example.com", "https://events.example.com/mcp"
	for name, tc := range map[string]struct {
		parameters map[string]string
		want       string
	}{
		"the defaults":                    {nil, ""},
		"tokens":                          {map[string]string{"Auth": "jwt", "JwtIssuer": issuer, "JwtAudience": audience}, ""},
		"tokens without an issuer":        {map[string]string{"Auth": "jwt", "JwtAudience": audience}, "Auth=jwt needs JwtIssuer"},
		"tokens without an audience":      {map[string]string{"Auth": "jwt", "JwtIssuer": issuer}, "Auth=jwt needs JwtAudience"},
		"a domain":                        {map[string]string{"FrontDomain": "e.example.com", "FrontCertificateArn": certificate}, ""},
		"a domain without a certificate":  {map[string]string{"FrontDomain": "e.example.com"}, "FrontDomain needs FrontCertificateArn"},
		"a certificate without a domain":  {map[string]string{"FrontCertificateArn": certificate}, "are for FrontDomain"},
		"a firewall of nothing":           {map[string]string{"FrontWebAclArn": "arn"}, "are for FrontDomain"},
		"a rule on a bus":                 {map[string]string{"SourceEventPattern": "{}", "SourceEventBus": "orders"}, ""},
		"a bus without a rule":            {map[string]string{"SourceEventBus": "orders"}, "SourceEventBus is for SourceEventPattern"},
		"a mapping of the inbox":          {map[string]string{"InboxConcurrency": "2"}, ""},
		"a mapping that is too small":     {map[string]string{"InboxConcurrency": "1"}, "InboxConcurrency is 0 or at least 2"},
		"room for one stream":             {map[string]string{"StreamReservedConcurrency": "2"}, ""},
		"a reservation without room":      {map[string]string{"StreamReservedConcurrency": "1"}, "StreamReservedConcurrency is 0 or at least 2"},
		"instances":                       {map[string]string{"StreamCapacityProvider": "arn"}, ""},
		"instances with a reservation":    {map[string]string{"StreamCapacityProvider": "arn", "StreamReservedConcurrency": "100"}, "StreamReservedConcurrency is for a stack without"},
		"an issuer that is not looked at": {map[string]string{"JwtIssuer": issuer}, "are for Auth=jwt"},
	} {
		t.Run("AWS-02 "+name, func(t *testing.T) {
			got := strings.Join(broken(t, d, tc.parameters), "; ")
			expect.Equal(t, "the absence of a fault", (got == ""), (tc.want == ""))
			expect.Contains(t, "the fault", got, tc.want)
		})
	}
}

// reservations are the functions whose concurrency a parameter can reserve: those with a URL, and the one that sends
// webhooks.
var reservations = []string{"Stream", "Publish", "Admin", "Dispatch"}

func TestReservedConcurrency(t *testing.T) {
	doc := tree(t)
	for _, name := range reservations {
		t.Run("AWS-25 a parameter reserves concurrency for "+name, func(t *testing.T) {
			got := written(t, *at(doc, "Resources", name+"Function", "Properties", "ReservedConcurrentExecutions"))
			if want := "!If [Has" + name + "Reservation, !Ref " + name + "ReservedConcurrency, !Ref 'AWS::NoValue']"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// TestDefaultsFitANewAccount adds up the concurrent executions that the defaults need while every queue has a backlog
// and a backend is configured. An HTTP source counts as a call, and retry processes the messages of other sources.
// The quota of a new account allows no reservations.
func TestDefaultsFitANewAccount(t *testing.T) {
	d, _ := readDeployment(t)
	const quota = 10
	number := func(t *testing.T, value any) int {
		t.Helper()
		return expect.Value(strconv.Atoi(value.(string)))(t)
	}
	parameter := func(t *testing.T, name string) int { t.Helper(); return number(t, *d.Parameters[name].Default) }
	workers := map[string]int{}
	for id, r := range d.Resources {
		switch r.Type {
		case "AWS::Lambda::EventSourceMapping":
			if r.Properties.Enabled.Kind != 0 && evaluate(d, nil, r.Properties.Enabled) == "false" {
				continue
			}
			if workers[id] = number(t, evaluate(d, nil, r.Properties.ScalingConfig["MaximumConcurrency"])); workers[id] < 2 {
				t.Errorf("%s has a concurrency of %d, want at least the 2 that Lambda requires", id, workers[id])
			}
		case "AWS::Serverless::Function":
			for _, e := range r.Properties.Events {
				if e.Type == "Schedule" {
					workers[id]++
				}
			}
		}
	}
	busy := 0
	for _, n := range workers {
		busy += n
	}
	t.Run("AWS-21 given a backlog in every queue, when retry and relay run, then two executions are left for calls", func(t *testing.T) {
		if len(workers) != 5 || quota-busy < 2 {
			t.Errorf("%[2]d of %[1]d executions are left for calls, want 2; the others are %[3]v", quota, quota-busy, workers)
		}
	})
	t.Run("AWS-08 given a backlog in every queue, when all streams are open, then they fit the quota", func(t *testing.T) {
		if streams := parameter(t, "StreamConcurrency") * 80 / 100; busy+streams > quota {
			t.Errorf("%d streams and %v take %d of %d", streams, workers, busy+streams, quota)
		}
	})
	t.Run("AWS-08 by default no function reserves concurrency", func(t *testing.T) {
		for id, r := range d.Resources {
			if n := r.Properties.ReservedConcurrentExecutions; n.Kind != 0 && (n.Tag != "!If" || n.Content[2].Value != "AWS::NoValue") {
				t.Errorf("%s reserves concurrency", id)
			}
		}
		for _, name := range reservations {
			expect.Equal(t, name+"ReservedConcurrency by default", parameter(t, name+"ReservedConcurrency"), 0)
		}
	})
}
