//go:build !noemulators

package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/events/webhook/targets"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/dynamo"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestMain(m *testing.M) { os.Exit(awslocal.Main(m)) }

func TestCatalogApplyWritesWhatFunctionsRead(t *testing.T) {
	ends := awslocal.Start(t, awslocal.DynamoDB)
	client := dynamodb.NewFromConfig(awslocal.Config(ends.DynamoDB))
	name := func(t store.Table) string { return "apply-" + string(t) }
	expect.OK(t, awslocal.CreateTables(t.Context(), client, name))
	db := dynamo.New(client, name)
	t.Setenv("AWS_ENDPOINT_URL", ends.DynamoDB)
	t.Setenv("AWS_REGION", awslocal.Region)
	t.Setenv("AWS_ACCESS_KEY_ID", awslocal.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", awslocal.SecretKey)
	t.Setenv("MCPEVENTS_TABLE_SETTINGS", name(store.Settings))

	settings := filepath.Join(t.TempDir(), "config.yaml")
	text := "keys:\n  - {principal: alice, scopes: [events:read], sha256: " + strings.Repeat("ab", 32) + "}\n"
	expect.OK(t, os.WriteFile(settings, []byte(text), 0o600))
	apply := "catalog apply --config " + settings + " ../../catalog.yaml"
	succeeds(t, apply,
		"Version 1 of the catalog of workspace default is stored", "Version 1 of the configuration is stored", "ci.build_finished: is new")
	stored, err := catalog.Load(t.Context(), db, "default")
	if err != nil || stored.ByName("ci.build_finished") == nil {
		t.Fatalf("the stored catalog: %v, %v", stored, err)
	}
	expect.Equal(t, "the keys of the stored configuration", len(expect.Value(config.Load(t.Context(), db))(t).Keys), 1)

	expect.Equal(t, "what is unchanged when it is applied again", strings.Count(succeeds(t, apply), "is unchanged"), 2)
	fails(t, "catalog apply --table another-one ../../catalog.yaml", exitRefused, "no such table: another-one")
	fails(t, "catalog check --against another-one ../../catalog.yaml", exitRefused, "no such table: another-one")

	// If the configuration is faulty, the catalog is not written either.
	expect.OK(t, os.WriteFile(settings, []byte("nonsense: 1\n"), 0o600))
	other := filepath.Join(t.TempDir(), "other.yaml")
	expect.OK(t, os.WriteFile(other, []byte("events:\n  - {name: a.b, uri: event://a/b}\n"), 0o600))
	fails(t, "catalog apply --config "+settings+" "+other, exitRefused, "config.yaml:1:")
	if stored, err := catalog.Load(t.Context(), db, "default"); err != nil || stored.ByName("a.b") != nil {
		t.Errorf("the catalog was written although the configuration is faulty (%v)", err)
	}

	// A catalog that ends subscriptions needs --allow-breaking.
	fails(t, "catalog apply "+other, exitRefused, "ci.build_finished (it is removed)", "--allow-breaking")
	if stored, err := catalog.Load(t.Context(), db, "default"); err != nil || stored.ByName("a.b") != nil {
		t.Errorf("the breaking catalog was written (%v)", err)
	}
	// With the subscriptions table, only a change that ends live subscriptions needs --allow-breaking.
	check := "catalog check " + other + " --against " + name(store.Settings)
	succeeds(t, check, "! ci.build_finished: is removed", "Webhook subscriptions to ci.build_finished would end: it is removed.")
	t.Setenv("MCPEVENTS_TABLE_SUBSCRIPTIONS", name(store.Subscriptions))
	succeeds(t, check, "No live webhook subscription would end.")
	subscribe(t, db)
	succeeds(t, check, "1 live webhook subscriptions would end because the event type ci.build_finished was removed.")
	fails(t, "catalog apply "+other, exitRefused,
		"would end 1 live webhook subscriptions: 1 in workspace default because the event type ci.build_finished was removed")
	fails(t, "catalog check "+other+" --against none.yaml", exitRefused, "there is no catalog at none.yaml: give its path, or write one", "mcpevents catalog init --list")
	succeeds(t, "catalog apply --allow-breaking "+other, "Version 2 of the catalog")
}

// subscribe registers a webhook for an event type of the sample catalog.
func subscribe(t *testing.T, db store.DB) {
	t.Helper()
	_, public, err := webhook.GenerateKeyset()
	expect.OK(t, err)
	sealer := expect.Value(webhook.NewSealer(public))(t)
	core := &app.Core{
		DB: db, Catalogs: catalog.NewStored(db, nil, nil, nil), EventLog: &eventlog.Log{DB: db},
		Limits: config.DefaultLimits(), Log: slog.New(slog.DiscardHandler),
	}
	core.Limits.AllowInsecureTargets = true
	subs := webhooks.NewRegistrar(core, webhooks.RegistrarOptions{
		Subscriptions: app.NewSubscriptions(core, app.SubscriptionOptions{}),
		Targets:       targets.Targets{Sender: webhooks.NewSender(core, webhooks.SenderOptions{}), Sealer: sealer},
	})
	who := auth.Principal{ID: "alice", Workspace: auth.DefaultWorkspace, Scopes: []string{auth.ScopeRead, auth.ScopeSubscribe}}
	_, err = subs.Register(t.Context(), who, subscription.RegisterRequest{URIs: []string{"event://ci/build-finished"}, Target: "http://127.0.0.1:9/hook"})
	expect.OK(t, err)
}
