package conversation

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Consents are kept by the store, in its own words:
//
//	table subscriptions, consent#WORKSPACE#HASH(principal)
//	  p#PROVIDER   the last time that consent was given or revoked
//
// They do not expire. A revoked one stays as the record that it was revoked. A
// consent is for a provider as it was: for its name, where it sends to, and the kinds
// of messages that it got. So neither a new URL nor a new kind is covered by it.
type consents struct {
	db     store.DB
	broken *metric.Undecodable
}

// Consent is one such record.
type Consent struct {
	// Given is false for one that was revoked.
	Given bool `json:"given"`
	// At is when it was given or revoked, By who did: the principal, or an operator.
	At time.Time `json:"at"`
	By string    `json:"by"`
	// Kinds are what it covers.
	Kinds []Kind `json:"kinds,omitempty"`
}

// consentItem is the value of the item.
type consentItem struct {
	V         int    `json:"v"`
	Principal string `json:"pr"`
	Provider  string `json:"p"`
	// To is a hash of where the provider sends to.
	To string `json:"to"`
	Consent
}

const consentVersion = 1

func consentPartition(workspace, principal string) string {
	h := sha256.Sum256([]byte(principal))
	return "consent#" + workspace + "#" + base64.RawURLEncoding.EncodeToString(h[:])
}

// Consented is the partition with the consents of a principal.
func Consented(workspace, principal string) store.Key { return consentKey(workspace, principal, "") }

func consentKey(workspace, principal, provider string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: consentPartition(workspace, principal), Sort: "p#" + provider}
}

// destination is the hash of where a provider sends to. It may hold a secret in its query.
func destination(parts ...string) string {
	b, _ := json.Marshal(parts) // strings
	h := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(h[:])
}

// of reads all records of a principal, strongly consistent, by provider.
func (c consents) of(ctx context.Context, workspace, principal string) (map[string]consentItem, error) {
	out := map[string]consentItem{}
	err := store.Each(ctx, c.db, Consented(workspace, principal), "read the consents", func(it *store.Item) error {
		var item consentItem
		if json.Unmarshal(it.Value, &item) != nil || item.V != consentVersion {
			c.broken.Add(ctx, "consent") // it is not given
			return nil
		}
		out[item.Provider] = item
		return nil
	})
	return out, err
}

func (c consents) write(ctx context.Context, workspace string, item consentItem) error {
	item.V = consentVersion
	value, err := json.Marshal(item)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode a consent")
	}
	err = c.db.Write(ctx, store.Put(store.Item{Key: consentKey(workspace, item.Principal, item.Provider), Value: value, Version: 1}))
	return fault.Wrap(fault.Unavailable, err, "write a consent")
}

// covers reports whether a message of the kind may be sent there.
func (i consentItem) covers(to string, kind Kind) bool {
	return i.Given && i.To == to && slices.Contains(i.Kinds, kind)
}
