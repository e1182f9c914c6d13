// Package bench measures senders of webhooks: this project's server, which it starts as a process of its own,
// and others through an [Adapter], all with one driver and one receiver, so that figures of one run compare.
//
//	driver ── POST, --publishers connections ──▶ server under test ── webhooks ──▶ receiver ──▶ ledger
//	  └── when was event n sent? ─────────────────────────────────────────────────────────────────┘
//
// The driver and the receiver are in every figure that counts both sides, so they do little: they speak HTTP/1.1
// by themselves over connections that stay open, and verify one signature in 64. Read [Shape], then [Run].
// What streams and the gateway cost is measured in streams.go and gateway.go.
package bench
