//go:build race

package delivery

// everyPoint is the distance of the crash points that are tried: the race detector makes
// each take ten times as long, and finds its races at few of them.
const everyPoint = 5
