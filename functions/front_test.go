package functions_test

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/test/expect"
)

// tree returns the parsed template.
func tree(t *testing.T) *yaml.Node {
	t.Helper()
	_, text := readDeployment(t)
	var doc yaml.Node
	expect.OK(t, yaml.Unmarshal([]byte(text), &doc))
	return doc.Content[0]
}

// at returns the value below a path of keys, or nil if it does not exist.
func at(n *yaml.Node, path ...string) *yaml.Node {
	for _, key := range path {
		if n == nil || n.Kind != yaml.MappingNode {
			return nil
		}
		var found *yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				found = n.Content[i+1]
			}
		}
		n = found
	}
	return n
}

func value(n *yaml.Node) string {
	if n == nil {
		return ""
	}
	return n.Value
}

// AWS-13: one host serves all paths. It allows streams, every method and every header, and tells clients where to get
// a token.
func TestOneHostForAllPaths(t *testing.T) {
	config := at(tree(t), "Resources", "Front", "Properties", "DistributionConfig")
	behaviours := append([]*yaml.Node{at(config, "DefaultCacheBehavior")}, at(config, "CacheBehaviors").Content...)
	routes := map[string]string{}
	for _, b := range behaviours {
		routes[value(at(b, "PathPattern"))] = value(at(b, "TargetOriginId"))
		var methods []string
		for _, m := range at(b, "AllowedMethods").Content {
			methods = append(methods, m.Value)
		}
		for _, m := range []string{"GET", "POST", "PUT", "DELETE", "OPTIONS"} {
			expect.Has(t, "the allowed methods", methods, m)
		}
		for property, want := range map[string]string{
			"CachePolicyId": "4135ea2d-6df8-44a3-9df3-4b5a84be39ad", "OriginRequestPolicyId": "b689b0a8-53d0-40ab-baf2-68738e2966ac",
			"Compress": "false", "ViewerProtocolPolicy": "https-only",
		} {
			expect.Equal(t, property, value(at(b, property)), want)
		}
		if challenge := at(b, "ResponseHeadersPolicyId"); challenge == nil || challenge.Content[0].Value != "HasChallenge" || challenge.Content[1].Value != "FrontChallenge" {
			t.Error("the challenge is missing")
		}
	}
	if len(routes) != 5 || routes[""] != "stream" || routes["/events"] != "publish" || routes["/sources/*"] != "publish" || routes["/admin/*"] != "admin" || routes["/console*"] != "admin" {
		t.Errorf("got %v", routes)
	}
	for _, origin := range at(config, "Origins").Content {
		domain := written(t, *at(origin, "DomainName"))
		if id := value(at(origin, "Id")); !strings.Contains(domain, strings.ToUpper(id[:1])+id[1:]+"FunctionUrl.FunctionUrl") {
			t.Errorf("%s is at %s", value(at(origin, "Id")), domain)
		}
		// At least twice the longest pause of a stream (15 s).
		expect.Equal(t, "the longest pause of a response in seconds", value(at(origin, "CustomOriginConfig", "OriginReadTimeout")), "60")
	}
	headers := at(tree(t), "Resources", "FrontChallenge", "Properties", "ResponseHeadersPolicyConfig", "CustomHeadersConfig", "Items")
	challenge := written(t, *headers.Content[0])
	expect.Contains(t, "the challenge", challenge,
		"WWW-Authenticate", `Bearer resource_metadata="https://${FrontDomain}/.well-known/oauth-protected-resource/mcp"`)
	for _, name := range []string{"McpUrl", "EventsUrl", "SourcesUrl", "AdminUrl"} {
		expect.Contains(t, name, written(t, *at(tree(t), "Outputs", name, "Value")), "https://${FrontDomain}/")
	}
}

// AWS-09: every URL is in the outputs or behind the front.
func TestNoURLIsUnused(t *testing.T) {
	doc := tree(t)
	outputs, front := written(t, *at(doc, "Outputs")), written(t, *at(doc, "Resources", "Front"))
	urls := 0
	d, _ := readDeployment(t)
	for id, r := range d.Resources {
		if r.Properties.FunctionURLConfig == nil {
			continue
		}
		urls++
		if used := id + "Url.FunctionUrl"; !strings.Contains(outputs, used) || !strings.Contains(front, used) {
			t.Errorf("nothing uses the URL of %s", id)
		}
	}
	expect.Equal(t, "the number of URLs", urls, 4)
}

// AWS-11 and AWS-20: every function except keys is called through an alias, gets a new version with every change, and
// is rolled back by alarms that a new version may raise. A message that anyone can send must not raise them.
func TestVersionsAndAliases(t *testing.T) {
	doc := tree(t)
	resources, shift := at(doc, "Resources"), at(doc, "Globals", "Function", "DeploymentPreference")
	if enabled, kind := value(at(shift, "Enabled")), value(at(shift, "Type")); enabled != "GradualDeployment" || kind != "TrafficShift" {
		t.Fatalf("DeploymentPreference has Enabled %q and Type %q, want GradualDeployment and TrafficShift", enabled, kind)
	}
	rolledBackBy(t, resources, at(shift, "Alarms"))
	for i := 0; i < len(resources.Content); i += 2 {
		id, r := resources.Content[i].Value, resources.Content[i+1]
		switch value(at(r, "Type")) {
		case "AWS::Lambda::EventSourceMapping":
			if got := value(at(r, "Properties", "FunctionName")); !strings.HasSuffix(got, "Function.Alias") {
				t.Errorf("%s calls %s", id, got)
			}
		case "AWS::Serverless::Function":
			if id == "KeysFunction" {
				continue // CloudFormation must call the version that it has just deployed
			}
			p := at(r, "Properties")
			if value(at(p, "AutoPublishAlias")) != "live" || value(at(p, "AutoPublishAliasAllProperties")) != "true" || value(at(p, "VersionDescription")) != "Keys.Fingerprint" {
				t.Errorf("%s: the alias may not follow a change", id)
			}
			if at(p, "DeploymentPreference") != nil {
				t.Errorf("%s overrides the DeploymentPreference of all functions", id)
			}
			for _, alarm := range []string{"ErrorsAlarm", "ThrottlesAlarm"} {
				expect.Contains(t, alarm, written(t, *at(resources, alarm)), "Value: !Ref "+id+"}")
			}
		}
	}
}

// rolledBackBy checks the alarms that roll back an alias, which are the alarms of the stack that a new version may raise.
func rolledBackBy(t *testing.T, resources, alarms *yaml.Node) {
	t.Helper()
	const most = 10 // the limit of a deployment group; the current quota is 50
	want := []string{
		"ErrorsAlarm", "HttpErrorsAlarm", "ThrottlesAlarm", "RecursionAlarm", "InboxAgeAlarm", "EventsAgeAlarm", "DeliveriesAgeAlarm", "OwnDeadLettersAlarm",
		"LagAlarm", "LateEntriesAlarm",
	}
	var got []string
	for _, alarm := range alarms.Content {
		got = append(got, alarm.Value)
		expect.Equal(t, "the type of "+alarm.Value, value(at(resources, alarm.Value, "Type")), "AWS::CloudWatch::Alarm")
	}
	expect.List(t, "the functions that roll back a deployment", got, want)
	expect.AtMost(t, "the number of functions", len(got), most)
}

// AWS-25: the functions know the key that the front sends.
func TestTheFrontIsTheOnlyWay(t *testing.T) {
	doc := tree(t)
	const key = `!Select [2, !Split ["/", !Ref 'AWS::StackId']]`
	expect.Equal(t, "MCPEVENTS_FRONT_KEY", written(t, *at(doc, "Globals", "Function", "Environment", "Variables", "MCPEVENTS_FRONT_KEY")), "!If [HasFront, "+key+`, ""]`)
	for _, origin := range at(doc, "Resources", "Front", "Properties", "DistributionConfig", "Origins").Content {
		headers := at(origin, "OriginCustomHeaders")
		if want := "[{HeaderName: X-Mcpevents-Front, HeaderValue: " + key + "}]"; headers == nil || written(t, *headers) != want {
			t.Errorf("origin %s does not send the key", value(at(origin, "Id")))
		}
	}
}

// AWS-22: the key can be replicated to another Region.
func TestTheSealingKey(t *testing.T) {
	expect.Equal(t, "MultiRegion", value(at(tree(t), "Resources", "SealingKey", "Properties", "MultiRegion")), "true")
}

// AWS-12: every use of a table or of the key refers to the adopted one, if there is one, and otherwise to the stack's
// own.
func TestWhatIsAdoptedIsUsedEverywhere(t *testing.T) {
	doc := tree(t)
	own := map[string]bool{}
	resources := at(doc, "Resources")
	for i := 0; i < len(resources.Content); i += 2 {
		id, r := resources.Content[i].Value, resources.Content[i+1]
		if kind := value(at(r, "Type")); kind == "AWS::DynamoDB::Table" || kind == "AWS::KMS::Key" {
			own[id] = true
			expect.Equal(t, "the condition of "+id, value(at(r, "Condition")), "Makes"+id)
			expect.Equal(t, "the condition Makes"+id, written(t, *at(doc, "Conditions", "Makes"+id)), `!Equals [!Ref `+id+`Arn, ""]`)
		}
	}
	expect.Equal(t, "the number of tables and keys", len(own), 7)
	var look func(n *yaml.Node, within string)
	look = func(n *yaml.Node, within string) {
		if n.Tag == "!If" {
			condition, chosen, other := n.Content[0].Value, n.Content[1], n.Content[2]
			if id, ok := strings.CutPrefix(condition, "Makes"); ok {
				if strings.TrimSuffix(chosen.Value, ".Arn") != id || other.Value != id+"Arn" {
					t.Errorf("line %d: got %s or %s for %s", n.Line, chosen.Value, other.Value, id)
				}
				return
			}
		}
		if id := strings.TrimSuffix(n.Value, ".Arn"); (n.Tag == "!Ref" || n.Tag == "!GetAtt") && own[id] && within != "SealingKeyAlias" {
			t.Errorf("line %d: %s may not exist", n.Line, n.Value)
		}
		for _, c := range n.Content {
			look(c, within)
		}
	}
	for i := 0; i < len(resources.Content); i += 2 {
		look(resources.Content[i+1], resources.Content[i].Value)
	}
	look(at(doc, "Globals"), "")
	look(at(doc, "Outputs"), "")
}
