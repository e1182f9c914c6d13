package template

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Text is a string property. CloudFormation also accepts numbers and booleans for it.
type Text string

// UnmarshalJSON accepts a JSON string, number or boolean.
func (v *Text) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err == nil {
		*v = Text(s)
		return nil
	}
	var n json.Number
	if err := json.Unmarshal(b, &n); err == nil {
		*v = Text(n.String())
		return nil
	}
	var t bool
	if err := json.Unmarshal(b, &t); err != nil {
		return fmt.Errorf("%s is not a string", b)
	}
	*v = Text(strconv.FormatBool(t))
	return nil
}

// Int is an integer property. It may be written as a string, because the values of parameters are strings.
type Int int

// UnmarshalJSON accepts a JSON number or a string that contains one.
func (v *Int) UnmarshalJSON(b []byte) error {
	var t Text
	if err := t.UnmarshalJSON(b); err != nil {
		return err
	}
	n, err := strconv.Atoi(string(t))
	if err != nil {
		return fmt.Errorf("%q is not an integer", string(t))
	}
	*v = Int(n)
	return nil
}

// Bool is a boolean property. It may be written as a string.
type Bool bool

// UnmarshalJSON accepts a JSON boolean or a string that contains one.
func (v *Bool) UnmarshalJSON(b []byte) error {
	var t Text
	if err := t.UnmarshalJSON(b); err != nil {
		return err
	}
	x, err := strconv.ParseBool(string(t))
	if err != nil {
		return fmt.Errorf("%q is not allowed (allowed: true, false)", string(t))
	}
	*v = Bool(x)
	return nil
}
