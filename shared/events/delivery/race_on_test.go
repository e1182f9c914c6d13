//go:build race

package delivery

// everyPoint is the distance between the tested crash points. With the race detector, each takes ten times as long, and a few of
// them are enough to find the races.
const everyPoint = 5
