// Package property runs random schedules of publishers, polls, streams and webhook receivers against the product, and
// checks that every accepted event reached every subscriber, became a dead letter, or belongs to an announced gap.
//
// The product is assembled from its real parts, as package standalone and the functions assemble it. Two systems exist: a
// stand-alone server over a SQLite file, and several instances over a store that does not order commits, which is
// DynamoDB Local or, in a synctest bubble, a SQLite store that hides its order. Only webhook endpoints are made up.
//
// Each run prints its seed. MCPEVENTS_TEST_SEED repeats one schedule, and MCPEVENTS_TEST_SCHEDULES sets how many run.
// Goroutines of one schedule still race with each other, so a failure may need more than one repetition.
package property
